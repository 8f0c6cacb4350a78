// Can this machine take part in a run? Takes facts and returns a verdict per question, each with advice. Pure: `doctor`
// and `join` collect the facts (run/join.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace thinpipe {

// Facts that only a run's coordinator knows, and the connection to it. Up is what this machine sends.
struct PreflightRun {
  uint32_t protocol = 0;
  std::string build;
  std::optional<std::string> seed_numbers_fault;  // "": the seed gives the same numbers here; none: nothing to compare
  uint64_t download_bytes = 0;                    // the stage's checkpoint
  double round_trip_s = 0;
  double clock_offset_s = 0;  // this machine's clock minus the coordinator's, uncertain by half the round trip
  double up_bits_per_s = 0, down_bits_per_s = 0;  // 0: unknown
  double up_bytes_per_step = 0, down_bytes_per_step = 0;
  double others_s_per_step = 0;  // the slowest of the other stages; 0: unknown
};

struct PreflightFacts {
  std::optional<int64_t> stage;  // the stage it would take; none: not decided
  uint32_t protocol = 0;
  std::string build;
  uint64_t memory_needed = 0, memory_available = 0;  // available 0: unknown
  uint64_t memory_limit = 0;                         // what its owner allows; 0: no limit
  uint64_t disk_needed = 0, disk_free = 0;           // free 0: unknown
  double compute_s_per_step = 0;                     // 0: not measured
  std::optional<PreflightRun> run;                   // none: there is no run to ask
};

enum class Verdict { kOk, kWarning, kRefusal };

struct Check {
  std::string name;  // "memory"
  Verdict verdict = Verdict::kOk;
  std::string text;    // what was found
  std::string remedy;  // advice; may be empty
};

// The checks in a fixed order, without those for which facts are missing. Refuses another protocol, other numbers from
// the seed, and too little memory or disk. Warns about another build, a clock that is certainly more than 5 minutes
// off, a step that takes more than 3 times as long as the others', and links that are slower than the computation.
std::vector<Check> preflight(const PreflightFacts& facts);

// Can this machine hold a whole run, of which it needs that much memory? available 0: unknown, which is not refused.
// limit: what its owner allows; 0: no limit.
Check check_memory_of_run(uint64_t needed, uint64_t available, uint64_t limit = 0);

// The worst verdict; kOk for no checks.
Verdict verdict(const std::vector<Check>& checks);

// One line per check for a terminal, each with "ok", "warning" or "no"; advice stands below its check.
std::string render(const std::vector<Check>& checks, size_t columns = std::string::npos);

}  // namespace thinpipe
