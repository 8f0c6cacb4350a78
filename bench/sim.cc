// `thinpipe bench sim`: how many simulated runs (tests/sim) a minute allows, and how many of them fail.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/line.h"
#include "base/work_line.h"
#include "bench/bench.h"
#include "simulate.h"

namespace thinpipe {

void bench_sim(const BenchSimOptions& options, bool json) {
  const sim::Simulator simulator;
  const auto begin = std::chrono::steady_clock::now();
  int64_t failures = 0;
  uint64_t events = 0;
  std::optional<WorkLine> line;
  line.emplace("playing", "seeds", static_cast<uint64_t>(options.seeds));
  for (int64_t seed = options.from; seed < options.from + options.seeds; ++seed) {
    const auto outcome = simulator.play(static_cast<uint64_t>(seed));
    events += outcome.events;
    line->add();
    if (outcome.violation.empty()) continue;
    ++failures;
    above_live_line([&] { fmt::print("{}", simulator.report(static_cast<uint64_t>(seed))); });
  }
  line.reset();
  const double per_minute = 60 * static_cast<double>(options.seeds) / seconds(std::chrono::steady_clock::now() - begin);
  fmt::print("{} seeds, {} failures, {} events, {:.0f} seeds per minute\n", options.seeds, failures, events,
             per_minute);
  if (!json) return;
  const nlohmann::ordered_json result = {
      {"seeds", options.seeds}, {"failures", failures}, {"events", events}, {"seeds_per_minute", per_minute}};
  fmt::print("{}\n", result.dump());
}

}  // namespace thinpipe
