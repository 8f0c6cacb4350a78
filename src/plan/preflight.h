// Can this machine take part? What was measured and asked goes in, a verdict per question comes out, each with what to
// do about it. Pure: `doctor` and `join` gather the facts, the coordinator gives the same answers from the other side.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace thinpipe {

// "Here" is the machine that wants to take part, "there" the run. Nothing: not known, or there is no run to ask; the
// question is left out then. Directions are this machine's: up is what it sends.
struct PreflightFacts {
  std::optional<int64_t> stage;  // that it would take; nothing: not decided

  uint32_t protocol_here = 0;
  std::optional<uint32_t> protocol_there;
  std::string build_here;
  std::optional<std::string> build_there;
  std::optional<std::string> seed_numbers_fault;  // in what this machine derives from the seed; empty: none

  std::optional<uint64_t> memory_needed, memory_available;
  std::optional<uint64_t> disk_needed, disk_free;
  std::optional<uint64_t> download_bytes;  // the stage's checkpoint, before it can begin

  std::optional<double> clock_offset_s;  // this clock less theirs
  double clock_uncertainty_s = 0;        // half of what the question was under way

  std::optional<double> round_trip_s;
  std::optional<double> up_bits_per_s, down_bits_per_s;
  std::optional<double> compute_s_per_step;
  std::optional<double> link_bytes_per_step_up, link_bytes_per_step_down;
  std::optional<double> others_s_per_step;  // the slowest stage's step without this machine
};

enum class Verdict { kOk, kWarning, kRefusal };

struct Check {
  std::string name;  // "memory"
  Verdict verdict = Verdict::kOk;
  std::string text;    // what is so
  std::string remedy;  // what to do; empty when nothing needs to be done
};

// In a fixed order; only what the facts answer. Refused: another protocol, other numbers from the seed, too little
// memory or disk, a clock that is surely further off than certificates allow. Warned of: another build, a step that
// takes more than 3 times what the others need, links that take longer than the computation.
std::vector<Check> preflight(const PreflightFacts& facts);

// The worst of them; kOk for none.
Verdict verdict(const std::vector<Check>& checks);

// One line per check for a terminal, "ok" / "warning" / "no" before it, remedies below their check.
std::string render(const std::vector<Check>& checks);

}  // namespace thinpipe
