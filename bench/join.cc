// bench join: how long a newcomer waits until the first step it takes part in.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "bench/bench.h"
#include "bench/open_run.h"
#include "config/config_file.h"

namespace thinpipe {
namespace {

// The number of stages with a connected worker.
int64_t held_stages(OpenRun& run) {
  int64_t count = 0;
  const auto now = run.status();
  for (const auto& member : now.members()) count += member.has_seat() && member.connected() ? 1 : 0;
  return count;
}

// Seconds from now to the next commit after a join.
double time_join(OpenRun& run, const std::string& name) {
  const auto before = run.status();
  const SystemClock clock;
  const auto begin = clock.now();
  run.join(name);
  run.wait_until("the next step is committed", [&] {
    const auto now = run.status();
    // Where the current epoch began: a newcomer may send everybody back to the last checkpoint.
    const int64_t from = std::min(before.step(), std::max<int64_t>(0, now.manifest_step()));
    return now.epoch() > before.epoch() && now.step() > from;
  });
  return seconds(clock.now() - begin);
}

void kick_last_stage(OpenRun& run) {
  const auto now = run.status();
  for (const auto& member : now.members()) {
    if (member.has_seat() && member.seat().stage() + 1 == run.config().pipeline.stages) return run.kick(member.peer());
  }
}

}  // namespace

void bench_join(const std::string& program, bool json) {
  OpenRun run(program, "join", parse_config("", "the defaults"));
  const int64_t stages = run.config().pipeline.stages;
  run.serve(stages + 1);
  for (int64_t stage = 0; stage + 1 < stages; ++stage) run.join(fmt::format("host-{}", stage));
  run.wait_until("all but one have joined", [&] { return held_stages(run) + 1 == stages; });
  const double first_s = time_join(run, "last");
  fmt::print("the last of {} machines joins a new run: {:.2f} s from the command to the first step\n", stages, first_s);
  std::fflush(stdout);
  run.wait_until("there is a checkpoint", [&] { return run.status().manifest_step() > 0; });
  kick_last_stage(run);
  const double replacement_s = time_join(run, "replacement");
  fmt::print("a machine takes over a stage, with its state: {:.2f} s from the command to the next step\n",
             replacement_s);
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json({{"join_s", first_s}, {"replacement_join_s", replacement_s}}).dump());
  }
}

}  // namespace thinpipe
