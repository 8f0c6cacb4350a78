// The plan of a simulation: what goes wrong, and when. It follows from the seed. A plan from which items are left out
// is still a plan, so a failing one can be made shorter.
#pragma once

#include <cstddef>
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
  kStrangers,          // connect again and again, and say nothing
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

// One operation on the first coordinator's disk fails, and nothing else goes wrong: instead of a plan.
struct DiskFault {
  bool sqlite;         // of run.sqlite, else of any other file
  uint64_t operation;  // those that change the disk, counted from 0
  int reason;          // EIO or ENOSPC
  bool half;           // a write leaves half of its bytes
  bool sticky;         // all operations after it fail too, until kPlanEnd

  std::string describe() const;
};

// Ends before kPlanEnd.
std::vector<PlannedFault> make_plan(uint64_t seed, bool open);
constexpr Duration kPlanEnd = std::chrono::seconds(60);
constexpr size_t kMostFaults = 16;

}  // namespace thinpipe::sim
