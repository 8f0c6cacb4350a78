#include "simulate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/log.h"
#include "world.h"

namespace thinpipe::sim {

struct Simulator::Shared {
  Stage stage;
};

Simulator::Simulator() : shared_(std::make_unique<Shared>()) {
  set_log_level("error");  // what a simulated coordinator has to say is no news
}
Simulator::~Simulator() = default;

Outcome Simulator::play(uint64_t seed, const std::vector<bool>& kept, bool traces) const {
  World world(shared_->stage, seed, kept, traces);
  Outcome outcome;
  try {
    world.play();
  } catch (const std::exception& failure) {
    outcome.violation = failure.what();
  }
  outcome.events = world.events_happened();
  return outcome;
}

DiskSweep Simulator::fail_disk_operations(uint64_t stride) const {
  DiskSweep sweep;
  const auto play = [&](const DiskFault& fault) {
    World world(shared_->stage, fault);
    ++sweep.plays;
    try {
      world.play();
    } catch (const std::exception& failure) {
      sweep.violations.push_back(fmt::format("{}: {}", fault.describe(), failure.what()));
    }
    return world.disk_operations(fault.sqlite);
  };
  for (const bool sqlite : {false, true}) {
    auto& count = sqlite ? sweep.sqlite_operations : sweep.file_operations;
    for (const auto& [reason, half] : {std::pair(EIO, false), std::pair(ENOSPC, false), std::pair(ENOSPC, true)}) {
      for (const bool sticky : {false, true}) {
        // Until it is beyond the last operation of a run.
        for (uint64_t operation = 0;; operation += stride) {
          const auto done = play({sqlite, operation, reason, half, sticky});
          count = std::max(count, std::min(done, operation));
          if (done <= operation) break;
        }
      }
    }
  }
  return sweep;
}

std::vector<bool> Simulator::shrink(uint64_t seed) const {
  std::vector<bool> kept(make_plan(seed, World::is_open_seed(seed)).size(), true);
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      kept[i] = false;
      if (play(seed, kept).violation.empty()) {
        kept[i] = true;
      } else {
        shorter = true;
      }
    }
  }
  return kept;
}

std::string Simulator::report(uint64_t seed) const {
  const auto plan = make_plan(seed, World::is_open_seed(seed));
  const auto kept = shrink(seed);
  std::vector<size_t> numbers;
  std::string text = fmt::format("seed {} fails: {}\nwith as few faults as possible: {}\n", seed, play(seed).violation,
                                 play(seed, kept).violation);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    numbers.push_back(i);
    text += fmt::format("  {:2}  {}\n", i, plan[i].describe());
  }
  return text + fmt::format("replay: thinpipe-sim --trace {}\nreplay these only: thinpipe-sim --trace {} --only {}\n",
                            seed, seed, numbers.empty() ? "none" : fmt::format("{}", fmt::join(numbers, ",")));
}

}  // namespace thinpipe::sim
