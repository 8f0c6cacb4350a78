#include "plan/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/say.h"
#include "base/units.h"
#include "plan/placement.h"

namespace thinpipe {
namespace {

constexpr double kNotableClockOffset_s = 300;
constexpr double kSlowFactor = 3;

std::string mib(uint64_t bytes) { return fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20); }

std::string seconds_text(double seconds) {
  if (seconds >= 90) return fmt::format("{:.0f} min", seconds / 60);
  return seconds >= 0.1 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} ms", seconds * 1000);
}

// The coordinator uses the same rule when it assigns stages.
uint64_t usable(uint64_t available) { return static_cast<uint64_t>(kMemoryShare * static_cast<double>(available)); }

Check check_protocol(uint32_t here, uint32_t there) {
  if (here == there) return {"protocol", Verdict::kOk, fmt::format("{} on both sides", here), ""};
  return {"protocol", Verdict::kRefusal, fmt::format("this program uses {}, the run uses {}", here, there),
          here < there
              ? "install the version of thinpipe that the run uses; this one is older"
              : "install the version of thinpipe that the run uses, or ask the organiser to update; this one is newer"};
}

Check check_build(const std::string& here, const std::string& there) {
  if (here == there) return {"build", Verdict::kOk, here, ""};
  return {"build", Verdict::kWarning, fmt::format("this is {}, the run is {}", here, there),
          "the run works, but results may differ in the last bits; use the run's build to avoid that"};
}

Check check_seed(const std::string& fault) {
  if (fault.empty()) return {"seed", Verdict::kOk, "gives the same token table and basis on this machine", ""};
  return {"seed", Verdict::kRefusal, fault,
          "training with different numbers would ruin the run; install the run's build"};
}

// Never refuses: nothing depends on equal clocks. Only the times in the logs differ.
Check check_clock(double offset_s, double uncertainty_s) {
  const double size = std::abs(offset_s);
  const auto how_far = fmt::format("{} {} the run's clock", seconds_text(size), offset_s > 0 ? "ahead of" : "behind");
  if (size <= std::max(1.0, uncertainty_s)) return {"clock", Verdict::kOk, "agrees with the run's clock", ""};
  if (size - uncertainty_s <= kNotableClockOffset_s) return {"clock", Verdict::kOk, how_far, ""};
  return {"clock", Verdict::kWarning, how_far,
          "the run works, but times in the logs will differ; one of the two clocks is wrong"};
}

// What its owner does not allow is refused, however much is free.
std::optional<Check> check_memory_limit(const std::string& what, uint64_t needed, uint64_t limit,
                                        const std::string& remedy) {
  if (limit == 0 || needed <= limit) return std::nullopt;
  return Check{"memory", Verdict::kRefusal,
               fmt::format("{} needs up to {}, and --max-memory allows {}", what, mib(needed), mib(limit)),
               fmt::format("{} too little: allow more, or {}", mib(needed - limit), remedy)};
}

Check check_memory(const PreflightFacts& facts) {
  const auto what = facts.stage ? fmt::format("stage {}", *facts.stage) : "a stage";
  if (const auto limited = check_memory_limit(
          what, facts.memory_needed, facts.memory_limit,
          "ask the organiser to lower train.microbatch, raise pipeline.stages or give this machine fewer blocks")) {
    return *limited;
  }
  if (facts.memory_available == 0) {
    return {"memory", Verdict::kOk, fmt::format("{} needs up to {}", what, mib(facts.memory_needed)), ""};
  }
  const uint64_t most = usable(facts.memory_available);
  const auto text = fmt::format("{} needs up to {}; this machine may use {} of its {}", what, mib(facts.memory_needed),
                                mib(most), mib(facts.memory_available));
  if (facts.memory_needed <= most) return {"memory", Verdict::kOk, text, ""};
  return {"memory", Verdict::kRefusal, text,
          fmt::format("{} too little: close other programs, or ask the organiser to lower train.microbatch, "
                      "raise pipeline.stages or give this machine fewer blocks (pipeline.cuts)",
                      mib(facts.memory_needed - most))};
}

Check check_disk(uint64_t needed, uint64_t free) {
  const auto text = fmt::format("needs {}, {} free", mib(needed), mib(free));
  if (needed <= free) return {"disk", Verdict::kOk, text, ""};
  return {"disk", Verdict::kRefusal, text,
          fmt::format("{} too little: free some space, or set THINPIPE_DATA_DIR to a folder on a larger disk",
                      mib(needed - free))};
}

// Seconds that the links need for one step. Both directions work in parallel, so the slower one counts; 0: unknown.
double link_seconds(const PreflightRun& run) {
  const auto time = [](double bytes, double rate) { return rate > 0 ? bytes * 8 / rate : 0; };
  return std::max(time(run.up_bytes_per_step, run.up_bits_per_s), time(run.down_bytes_per_step, run.down_bits_per_s));
}

Check check_link(const PreflightRun& run, double compute_s) {
  const double link_s = link_seconds(run);
  Check check{"link", Verdict::kOk,
              fmt::format("{} up, {} down, {} round trip", rate_text(run.up_bits_per_s), rate_text(run.down_bits_per_s),
                          seconds_text(run.round_trip_s)),
              ""};
  if (link_s > 0) check.text += fmt::format(", {} per step", seconds_text(link_s));
  if (compute_s > 0 && link_s > compute_s) {
    check.verdict = Verdict::kWarning;
    check.text += fmt::format(", longer than the computation ({})", seconds_text(compute_s));
    check.remedy =
        "the run will wait for this link; use a cable, or ask the organiser for a smaller boundary.pack or "
        "subspace.rank";
  }
  return check;
}

Check check_speed(double own_s, double others_s) {
  Check check{"speed", Verdict::kOk, fmt::format("about {} per step", seconds_text(own_s)), ""};
  if (others_s <= 0) return check;
  check.text += fmt::format(", the others need {}", seconds_text(others_s));
  if (own_s > kSlowFactor * others_s) {
    check.verdict = Verdict::kWarning;
    check.text += fmt::format(": {:.1f} times as long", own_s / others_s);
    check.remedy =
        "all other machines will wait for this one; ask the organiser to give it fewer blocks (pipeline.cuts = "
        "\"auto\")";
  }
  return check;
}

Check check_download(uint64_t bytes, double bits_per_s) {
  auto text = fmt::format("{} before it can start", mib(bytes));
  if (bits_per_s > 0) text += fmt::format(", about {}", seconds_text(static_cast<double>(bytes) * 8 / bits_per_s));
  return {"download", Verdict::kOk, text, ""};
}

}  // namespace

std::vector<Check> preflight(const PreflightFacts& facts) {
  std::vector<Check> checks;
  const auto& run = facts.run;
  if (run) {
    checks.push_back(check_protocol(facts.protocol, run->protocol));
    checks.push_back(check_build(facts.build, run->build));
    if (run->seed_numbers_fault) checks.push_back(check_seed(*run->seed_numbers_fault));
    checks.push_back(check_clock(run->clock_offset_s, run->round_trip_s / 2));
  }
  if (facts.memory_available > 0 || facts.memory_limit > 0) checks.push_back(check_memory(facts));
  if (facts.disk_free > 0) checks.push_back(check_disk(facts.disk_needed, facts.disk_free));
  if (run) checks.push_back(check_link(*run, facts.compute_s_per_step));
  if (facts.compute_s_per_step > 0) {
    const double own_s = std::max(facts.compute_s_per_step, run ? link_seconds(*run) : 0);
    checks.push_back(check_speed(own_s, run ? run->others_s_per_step : 0));
  }
  if (run) checks.push_back(check_download(run->download_bytes, run->down_bits_per_s));
  return checks;
}

Check check_memory_of_run(uint64_t needed, uint64_t available, uint64_t limit) {
  if (const auto limited = check_memory_limit("this run", needed, limit,
                                              "lower model.d, model.blocks, train.microbatch or train.seq_len")) {
    return *limited;
  }
  const uint64_t most = usable(available);
  const auto text = fmt::format("this run needs up to {}; this machine may use {} of the {} that are available",
                                mib(needed), mib(most), mib(available));
  if (available == 0 || needed <= most) return {"memory", Verdict::kOk, text, ""};
  return {"memory", Verdict::kRefusal, text,
          "lower model.d, model.blocks, train.microbatch or train.seq_len, set train.recompute = \"block\", or divide "
          "it among several machines (`thinpipe serve`)"};
}

Verdict verdict(const std::vector<Check>& checks) {
  Verdict worst = Verdict::kOk;
  for (const auto& check : checks) worst = std::max(worst, check.verdict);
  return worst;
}

std::string render(const std::vector<Check>& checks, size_t columns) {
  const auto word = [](Verdict verdict) {
    return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarning ? "warning" : "no";
  };
  size_t widest = 0;
  for (const auto& check : checks) widest = std::max(widest, check.name.size());
  std::string out;
  for (const auto& check : checks) {
    const size_t before = 11 + widest;
    out += fmt::format("{:<7}  {:<{}}  {}\n", word(check.verdict), check.name, widest,
                       folded(check.text, columns, before));
    if (!check.remedy.empty()) {
      out += fmt::format("{:<{}}{}\n", "", before, folded("-> " + check.remedy, columns, before));
    }
  }
  return out;
}

}  // namespace thinpipe
