// Who gets what: how a run with cuts = "auto" is cut for the machines that take part, and which stage somebody who
// comes later takes. Pure functions of what is known, each with a sentence why for the log and the dashboard.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

struct Machine {
  std::string peer;
  double block_s = 0;         // forward and backward of one block of this run's size, one microbatch; 0: not known
  double ends_s = 0;          // head and loss of one microbatch; 0: not known
  uint64_t memory_bytes = 0;  // that it can give; 0: not known, and then nothing is too much for it
};

struct Placement {
  std::vector<int64_t> cuts;       // blocks per stage
  std::vector<std::string> peers;  // who takes the stage
  std::string why;
};

// The share of a machine's memory that a stage may fill.
inline constexpr double kMemoryShare = 0.9;
inline constexpr size_t kMostMachines = 16;
inline constexpr int64_t kMostPlacedBlocks = 200;

// Cuts the model for these machines (in the order they came) into pipeline.stages stages, so that the slowest stage's
// time per microbatch is the least possible; each stage fits its machine by memory_plan(), the dense tail stays in the
// last stage and no anchor group is split. Machines beyond the stages are left over. A speed that is not known counts
// as the mean of those that are. Of equally fast placements the one that keeps the order of arrival longest, then the
// one whose stages take the most equal times, then the one with more blocks early. The config must be validated; its
// own cuts do not matter. Exact up to kMostMachines and kMostPlacedBlocks, more are an error, as are too few machines
// and a stage that fits nobody: it says who lacks what.
Result<Placement> place(const RunConfig& config, int64_t vocab, const std::vector<Machine>& machines);

// The config of a run that was placed so.
RunConfig placed(RunConfig config, const Placement& placement);

struct Seat {
  int64_t stage;
  bool held;
};

struct SeatChoice {
  std::optional<int64_t> stage;  // nothing: it waits as a spare
  std::string why;
};

// Where somebody who joins a running run goes: the lowest stage nobody holds whose memory plan fits into the memory it
// has (0: not known, everything fits). When every free stage is too large for it, it waits: it would fail there.
SeatChoice choose_stage(const RunConfig& config, int64_t vocab, const std::vector<Seat>& seats, uint64_t memory_bytes);

}  // namespace thinpipe
