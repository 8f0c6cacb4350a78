#include "plan/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "plan/placement.h"

namespace thinpipe {
namespace {

constexpr double kMostClockOffset_s = 300;  // well inside the slack that certificates have (cluster/admission.h)
constexpr double kSlowFactor = 3;

std::string mib(uint64_t bytes) { return fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20); }

std::string seconds_text(double seconds) {
  if (seconds >= 90) return fmt::format("{:.0f} min", seconds / 60);
  return seconds >= 0.1 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} ms", seconds * 1000);
}

std::string rate_text(double bits_per_s) { return fmt::format("{:.3g} Mbit/s", bits_per_s / 1e6); }

std::string place_text(const PreflightFacts& facts) {
  return facts.stage ? fmt::format("stage {}", *facts.stage) : std::string("a stage");
}

void check_protocol(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.protocol_there) return;
  const uint32_t here = facts.protocol_here, there = *facts.protocol_there;
  if (here == there) {
    checks.push_back({"protocol", Verdict::kOk, fmt::format("{} on both sides", here), ""});
    return;
  }
  checks.push_back(
      {"protocol", Verdict::kRefusal, fmt::format("this program speaks {}, the run speaks {}", here, there),
       here < there ? "get the version of thinpipe the run uses; this one is older"
                    : "get the version of thinpipe the run uses, or ask the organiser for a newer one; this "
                      "one is newer"});
}

void check_build(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.build_there) return;
  if (facts.build_here == *facts.build_there) {
    checks.push_back({"build", Verdict::kOk, facts.build_here, ""});
    return;
  }
  checks.push_back({"build", Verdict::kWarning,
                    fmt::format("this is {}, the run is {}", facts.build_here, *facts.build_there),
                    "the run works, but not to the same last bits; for that, use the run's build"});
}

void check_seed_numbers(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.seed_numbers_fault) return;
  if (facts.seed_numbers_fault->empty()) {
    checks.push_back({"seed", Verdict::kOk, "the run's token table and basis come out of it here too", ""});
    return;
  }
  checks.push_back({"seed", Verdict::kRefusal, *facts.seed_numbers_fault,
                    "training with other numbers than the other stages would ruin the run; get the run's build"});
}

void check_memory(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.memory_needed || !facts.memory_available) return;
  const uint64_t needed = *facts.memory_needed, available = *facts.memory_available;
  // As the coordinator reckons when it gives out stages.
  const auto usable = static_cast<uint64_t>(kMemoryShare * static_cast<double>(available));
  const auto text = fmt::format("{} takes up to {}, {} of the {} here may be used", place_text(facts), mib(needed),
                                mib(usable), mib(available));
  if (needed <= usable) {
    checks.push_back({"memory", Verdict::kOk, text, ""});
    return;
  }
  checks.push_back({"memory", Verdict::kRefusal, text,
                    fmt::format("{} are missing: close other programs, or ask the organiser to lower train.microbatch, "
                                "to raise pipeline.stages or to give this machine fewer blocks (pipeline.cuts)",
                                mib(needed - usable))});
}

void check_disk(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.disk_needed || !facts.disk_free) return;
  const uint64_t needed = *facts.disk_needed, has = *facts.disk_free;
  const auto text = fmt::format("{} of files, {} is free", mib(needed), mib(has));
  if (needed <= has) {
    checks.push_back({"disk", Verdict::kOk, text, ""});
    return;
  }
  checks.push_back(
      {"disk", Verdict::kRefusal, text,
       fmt::format("{} are missing: delete something, or set THINPIPE_DATA_DIR to a folder on a larger disk",
                   mib(needed - has))});
}

// Only what is off even if the question's way back took all the time.
void check_clock(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.clock_offset_s) return;
  const double offset = *facts.clock_offset_s, size = std::abs(offset);
  if (size - facts.clock_uncertainty_s <= kMostClockOffset_s) {
    const auto text = size <= std::max(1.0, facts.clock_uncertainty_s)
                          ? std::string("agrees with the run's")
                          : fmt::format("{} {} of the run's", seconds_text(size), offset > 0 ? "ahead" : "behind");
    checks.push_back({"clock", Verdict::kOk, text, ""});
    return;
  }
  const auto how_far = fmt::format("{} {}", seconds_text(size), offset > 0 ? "ahead" : "behind");
  checks.push_back({"clock", Verdict::kRefusal,
                    fmt::format("{} of the run's; more than {} and certificates may not be valid", how_far,
                                seconds_text(kMostClockOffset_s)),
                    fmt::format("set this machine's clock: it is {}", how_far)});
}

// Seconds the links need for one step: both directions at once, the slower one counts.
std::optional<double> link_seconds(const PreflightFacts& facts) {
  std::optional<double> slowest;
  const auto take = [&](std::optional<double> bytes, std::optional<double> rate) {
    if (!bytes || !rate || !(*rate > 0)) return;
    slowest = std::max(slowest.value_or(0), *bytes * 8 / *rate);
  };
  take(facts.link_bytes_per_step_up, facts.up_bits_per_s);
  take(facts.link_bytes_per_step_down, facts.down_bits_per_s);
  return slowest;
}

void check_link(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.round_trip_s && !facts.up_bits_per_s && !facts.down_bits_per_s) return;
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (facts.up_bits_per_s) add(rate_text(*facts.up_bits_per_s) + " up");
  if (facts.down_bits_per_s) add(rate_text(*facts.down_bits_per_s) + " down");
  if (facts.round_trip_s) add(seconds_text(*facts.round_trip_s) + " there and back");
  const auto link_s = link_seconds(facts);
  if (link_s) add(seconds_text(*link_s) + " a step");
  Check check{"link", Verdict::kOk, text, ""};
  if (link_s && facts.compute_s_per_step && *link_s > *facts.compute_s_per_step) {
    check.verdict = Verdict::kWarning;
    check.text += fmt::format(", more than the computation ({})", seconds_text(*facts.compute_s_per_step));
    check.remedy =
        "the run will wait for this link; use a cable, or ask the organiser for a smaller boundary.pack or "
        "subspace.rank";
  }
  checks.push_back(std::move(check));
}

void check_speed(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.compute_s_per_step) return;
  const double own = std::max(*facts.compute_s_per_step, link_seconds(facts).value_or(0));
  Check check{"speed", Verdict::kOk, fmt::format("about {} a step", seconds_text(own)), ""};
  if (facts.others_s_per_step) {
    check.text += fmt::format(", the others need {}", seconds_text(*facts.others_s_per_step));
    if (own > kSlowFactor * *facts.others_s_per_step) {
      check.verdict = Verdict::kWarning;
      check.text += fmt::format(": {:.1f} times as long", own / *facts.others_s_per_step);
      check.remedy =
          "everybody will wait for this machine; ask the organiser to give it fewer blocks (pipeline.cuts = \"auto\")";
    }
  }
  checks.push_back(std::move(check));
}

void check_download(const PreflightFacts& facts, std::vector<Check>& checks) {
  if (!facts.download_bytes) return;
  auto text = fmt::format("{} before it can begin", mib(*facts.download_bytes));
  if (facts.down_bits_per_s && *facts.down_bits_per_s > 0) {
    const double time_s = static_cast<double>(*facts.download_bytes) * 8 / *facts.down_bits_per_s;
    text += fmt::format(", about {}", seconds_text(time_s));
  }
  checks.push_back({"download", Verdict::kOk, text, ""});
}

}  // namespace

std::vector<Check> preflight(const PreflightFacts& facts) {
  std::vector<Check> checks;
  check_protocol(facts, checks);
  check_build(facts, checks);
  check_seed_numbers(facts, checks);
  check_clock(facts, checks);
  check_memory(facts, checks);
  check_disk(facts, checks);
  check_link(facts, checks);
  check_speed(facts, checks);
  check_download(facts, checks);
  return checks;
}

Verdict verdict(const std::vector<Check>& checks) {
  Verdict worst = Verdict::kOk;
  for (const auto& check : checks) worst = std::max(worst, check.verdict);
  return worst;
}

std::string render(const std::vector<Check>& checks) {
  const auto word = [](Verdict verdict) {
    return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarning ? "warning" : "no";
  };
  size_t widest = 0;
  for (const auto& check : checks) widest = std::max(widest, check.name.size());
  std::string out;
  for (const auto& check : checks) {
    out += fmt::format("{:<7}  {:<{}}  {}\n", word(check.verdict), check.name, widest, check.text);
    if (!check.remedy.empty()) out += fmt::format("{:<{}}-> {}\n", "", 11 + widest, check.remedy);
  }
  return out;
}

}  // namespace thinpipe
