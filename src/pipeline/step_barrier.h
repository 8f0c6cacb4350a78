// Where the stages of an in-process run meet their coordinator: it hands out commands, they hand back reports. The
// first failure sticks and wakes everybody, so a stage that dies never leaves the others waiting.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "pipeline/stage_report.h"

namespace thinpipe {

struct RunStep {
  int64_t step;
};
struct Evaluate {
  int64_t windows;  // of the validation split, from 0
};
struct Stop {};
using StageCommand = std::variant<RunStep, CommitStep, Evaluate, Stop>;

class StepBarrier {
 public:
  explicit StepBarrier(size_t stages) : queues_(stages), reports_(stages) {}

  // Coordinator. give() never waits; gather() waits for one report of every stage, in stage order.
  void give(const StageCommand& command);
  Result<std::vector<StageReport>> gather();

  // Stage. next() waits for a command.
  Result<StageCommand> next(size_t stage);
  void report(size_t stage, StageReport report);

  // Anybody. The first reason stays.
  void fail(const std::string& reason);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<StageCommand>> queues_;
  std::vector<std::optional<StageReport>> reports_;
  std::optional<Error> failure_;
};

}  // namespace thinpipe
