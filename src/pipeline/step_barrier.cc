#include "pipeline/step_barrier.h"

#include <algorithm>
#include <utility>

namespace thinpipe {

void StepBarrier::give(const StageCommand& command) {
  const std::lock_guard lock(mutex_);
  for (auto& queue : queues_) queue.push_back(command);
  changed_.notify_all();
}

Result<std::vector<StageReport>> StepBarrier::gather() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return failure_ ||
           std::all_of(reports_.begin(), reports_.end(), [](const auto& report) { return report.has_value(); });
  });
  if (failure_) return *failure_;
  std::vector<StageReport> gathered;
  for (auto& report : reports_) {
    gathered.push_back(std::move(*report));
    report.reset();
  }
  return gathered;
}

Result<StageCommand> StepBarrier::next(size_t stage) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || !queues_[stage].empty(); });
  if (failure_) return *failure_;
  const StageCommand command = queues_[stage].front();
  queues_[stage].pop_front();
  return command;
}

void StepBarrier::report(size_t stage, StageReport report) {
  const std::lock_guard lock(mutex_);
  reports_[stage] = std::move(report);
  changed_.notify_all();
}

void StepBarrier::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = Error{reason};
  changed_.notify_all();
}

}  // namespace thinpipe
