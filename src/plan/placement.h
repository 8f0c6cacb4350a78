// Assigns work to machines: how a run with cuts = "auto" is cut for its machines, and which stage a worker that joins
// later takes. Pure functions; each result has a sentence that says why, for the log and the dashboard.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

struct Machine {
  std::string peer;
  double block_s = 0;         // forward and backward of one block for one microbatch; 0: unknown
  double ends_s = 0;          // head and loss of one microbatch; 0: unknown
  uint64_t memory_bytes = 0;  // available to a stage; 0: unknown, any stage fits
};

struct Placement {
  std::vector<int64_t> cuts;       // blocks per stage
  std::vector<std::string> peers;  // who takes each stage
  std::string why;
};

// The fraction of a machine's memory that a stage may use.
inline constexpr double kMemoryShare = 0.9;

// Cuts the model for these machines (in the order in which they joined) into pipeline.stages stages such that the
// slowest stage takes as little time per microbatch as possible. Each stage fits its machine according to
// memory_plan(), the dense tail stays in the last stage and no anchor group is split. Machines beyond the number of
// stages become spares; if there are many, only the fastest are considered. An unknown speed counts as the mean of the
// known ones. Among equally fast placements, the one with the more even stages wins, then the order of joining.
//
// The result is optimal if memory is no limit and the model may be cut after every block before the tail. Otherwise the
// order of the machines matters, and only two orders are tried: the order of joining, and the most memory first (each
// with every machine as the last stage, because the head makes that stage heavier). placement_test.cc says how often
// that misses the best. Returns an error if there are too few machines or if no division that was tried fits their
// memory. The config must be validated; its own cuts are ignored.
Result<Placement> place(const RunConfig& config, int64_t vocab, const std::vector<Machine>& machines);

// A place in a run: a stage, and the number of the replica. Today every stage has one replica, number 0.
struct Seat {
  int64_t stage = 0;
  int64_t replica = 0;

  auto operator<=>(const Seat&) const = default;
};

struct SeatChoice {
  std::optional<Seat> seat;  // none: it waits as a spare
  std::string why;
};

// Chooses the seat of a worker that joins a running run: the lowest free one whose memory plan fits its memory (0:
// unknown, any stage fits). If every free stage is too large, the worker waits: it would run out of memory there.
SeatChoice choose_seat(const RunConfig& config, int64_t vocab, std::vector<Seat> free, uint64_t memory_bytes);

}  // namespace thinpipe
