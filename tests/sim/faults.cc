#include "faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace thinpipe::sim {
namespace {

const char* name_of(FaultKind kind) {
  static constexpr const char* kNames[] = {"a worker dies",
                                           "a worker freezes",
                                           "a line breaks",
                                           "a line is half open",
                                           "a worker is cut off from the coordinator",
                                           "two workers are cut off from each other",
                                           "the coordinator is killed",
                                           "the coordinator loses power",
                                           "the coordinator freezes",
                                           "the disk fails",
                                           "SQLite's disk fails",
                                           "a worker lies",
                                           "the operator kicks a worker",
                                           "the operator kicks a worker that uploads",
                                           "a kicked worker comes back",
                                           "the operator pauses",
                                           "a worker leaves",
                                           "a worker joins",
                                           "a second coordinator is started",
                                           "the owner makes a backup",
                                           "the owner restores the backup",
                                           "a worker reaches the other coordinator",
                                           "strangers connect",
                                           "the wall clock jumps"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

std::string PlannedFault::describe() const {
  return fmt::format("{:6.2f} s  {} ({}, {}, {:.1f} s{})", seconds(at), name_of(kind), who % 100, other % 100,
                     seconds(time), flag ? ", flag" : "");
}

std::string DiskFault::describe() const {
  return fmt::format("operation {} on {} fails with {}{}{}", operation, sqlite ? "run.sqlite" : "a file",
                     reason == EIO ? "EIO" : "ENOSPC", half ? " after half a write" : "",
                     sticky ? ", and so do all after it" : "");
}

std::vector<PlannedFault> make_plan(uint64_t seed, bool open) {
  Dice dice(seed, "plan");
  std::vector<PlannedFault> plan;
  // Each seed has a few kinds only, so that some plans consist of what rarely meets.
  std::vector<FaultKind> kinds;
  for (uint64_t i = 2 + dice.below(6); i-- > 0;) {
    kinds.push_back(static_cast<FaultKind>(dice.below(static_cast<uint64_t>(FaultKind::kCount))));
  }
  const auto count = 1 + dice.below(kMostFaults);
  for (uint64_t i = 0; i < count; ++i) {
    PlannedFault fault{};
    fault.kind = kinds[dice.below(kinds.size())];
    fault.at = dice.between(std::chrono::seconds(1), kPlanEnd - std::chrono::seconds(20));
    fault.who = dice.bits() >> 8;
    fault.other = dice.bits() >> 8;
    fault.time = dice.one_in(4) ? dice.between(std::chrono::seconds(5), std::chrono::seconds(40))
                                : dice.between(std::chrono::milliseconds(100), std::chrono::seconds(5));
    fault.flag = dice.one_in(2);
    const bool needs_open = fault.kind == FaultKind::kLie || fault.kind == FaultKind::kKick ||
                            fault.kind == FaultKind::kKickUploader || fault.kind == FaultKind::kReturnAfterKick;
    if (open || !needs_open) plan.push_back(fault);
  }
  std::sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return plan;
}

}  // namespace thinpipe::sim
