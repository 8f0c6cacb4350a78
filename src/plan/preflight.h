// Can this machine take part in a run? Facts go in; a verdict per question comes out, each with what to do about it.
// Pure: `doctor` and `join` gather the facts (run/join.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace thinpipe {

// What only a run's coordinator can tell, and the line to it. Up is what this machine sends.
struct PreflightRun {
  uint32_t protocol = 0;
  std::string build;
  std::optional<std::string>
      seed_numbers_fault;       // "": this machine derives the run's numbers; none: nothing to compare
  uint64_t download_bytes = 0;  // the stage's checkpoint
  double round_trip_s = 0;
  double clock_offset_s = 0;  // this machine's clock minus the coordinator's, uncertain by half of the round trip
  double up_bits_per_s = 0, down_bits_per_s = 0;  // 0: unknown
  double up_bytes_per_step = 0, down_bytes_per_step = 0;
  double others_s_per_step = 0;  // the slowest of the other stages; 0: unknown
};

struct PreflightFacts {
  std::optional<int64_t> stage;  // the one it would take; none: not decided
  uint32_t protocol = 0;
  std::string build;
  uint64_t memory_needed = 0, memory_available = 0;  // available 0: unknown
  uint64_t disk_needed = 0, disk_free = 0;           // free 0: unknown
  double compute_s_per_step = 0;                     // 0: not measured
  std::optional<PreflightRun> run;                   // none: there is no run to ask
};

enum class Verdict { kOk, kWarning, kRefusal };

struct Check {
  std::string name;  // "memory"
  Verdict verdict = Verdict::kOk;
  std::string text;    // what was found
  std::string remedy;  // what to do about it; empty if nothing
};

// The checks in a fixed order, without those that the facts cannot answer. Refuses another protocol, other numbers from
// the seed, and too little memory or disk. Warns of another build, a clock that is certainly more than 5 minutes off, a
// step that takes more than 3 times as long as the others', and links that are slower than the computation.
std::vector<Check> preflight(const PreflightFacts& facts);

// The worst verdict; kOk for no checks.
Verdict verdict(const std::vector<Check>& checks);

// One line per check for a terminal, "ok" / "warning" / "no" before it, remedies below their check.
std::string render(const std::vector<Check>& checks);

}  // namespace thinpipe
