// The plan of a simulation: what goes wrong, and when. It follows from the seed. A plan from which items are left out
// is still a plan, so a failing one can be made shorter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "virtual_time.h"

namespace thinpipe::sim {

enum class FaultKind {
  kWorkerDies,
  kWorkerFreezes,
  kLineBreaks,
  kLineHalfOpen,
  kPartition,       // a worker from the coordinator
  kPeersPartition,  // two workers from each other
  kCoordinatorDies,
  kPowerLoss,  // of the coordinator
  kCoordinatorFreezes,
  kDiskFails,  // checkpoints and logs; once or for a while
  kSqliteFails,
  kLie,
  kKick,
  kKickUploader,  // whoever is sending a file
  kReturnAfterKick,
  kPause,
  kLeave,
  kJoin,
  kSecondCoordinator,  // on the same folder
  kBackup,             // of the folder
  kRestore,            // a coordinator starts from the backup, beside the first or in its place
  kReroute,            // a worker reaches the other coordinator from now on
  kClockJumps,
  kCount
};

struct PlannedFault {
  Duration at;
  FaultKind kind;
  uint64_t who, other;  // any numbers; the world takes them modulo what there is
  Duration time;
  bool flag;  // sticky, silently, in its place

  std::string describe() const;
};

// Ends before kPlanEnd.
std::vector<PlannedFault> make_plan(uint64_t seed, bool open);
constexpr Duration kPlanEnd = std::chrono::seconds(60);

}  // namespace thinpipe::sim
