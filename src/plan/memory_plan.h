// What a stage needs from a machine, computed from the config alone: memory, the state it downloads first, bytes per
// step. `doctor` and `join` compare it with the machine before anything is downloaded. Parameters come from
// config/model_spec.h, moments from the optimizer's rules, messages from the boundary.
#pragma once

#include <cstdint>
#include <string>

#include "config/model_spec.h"
#include "config/run_config.h"

namespace thinpipe {

// Bytes: an upper estimate of peak resident memory. Where a number depends on the text or on the speed of a link, it is
// the worst case (docs/joining.md compares estimates with measurements). On a GPU, everything but queues,
// checkpoint_copy and base is GPU memory.
struct MemoryPlan {
  uint64_t parameters = 0;   // weights; in a subspace model the basis and the frozen token table as well
  uint64_t gradients = 0;    // including the second moment for updates of the subspace
  uint64_t optimizer = 0;    // moments, and temporary memory for updating the largest weights
  uint64_t activations = 0;  // of the microbatches in flight, and temporary memory of one pass
  uint64_t logits = 0;       // last stage only
  uint64_t queues = 0;       // messages in flight on its links
  // Of an asynchronous checkpoint. With checkpoint.mode = "auto" a stage makes this copy only where memory is plenty,
  // so it is not counted. Synchronous checkpoints and restoring need no copy.
  uint64_t checkpoint_copy = 0;
  uint64_t base = 0;  // the program and libtorch

  uint64_t total() const;
};

// This and the functions below need a validated config and one of its stages.
MemoryPlan memory_plan(const RunConfig& config, int64_t vocab, int64_t stage);
// The same if that stage had these blocks instead of those of the cuts.
MemoryPlan memory_plan(const RunConfig& config, int64_t vocab, int64_t stage, BlockRange blocks);

// All stages and the coordinator on one machine. In one process, the program itself counts once.
uint64_t memory_of_run(const RunConfig& config, int64_t vocab, bool in_one_process);

// Numbers that the stage keeps per microbatch from its forward to its backward pass.
double kept_per_microbatch(const RunConfig& config, int64_t vocab, BlockRange blocks);

// The largest number of microbatches that the stage ever holds. The coordinator chooses 1f1b's warm-up from the message
// times it measures (docs/schedules.md), so every stage but the last may hold all of them.
int64_t most_in_flight(const RunConfig& config, int64_t stage);

// The size of a checkpoint of these blocks, which a worker that takes them over downloads first.
uint64_t state_bytes(const RunConfig& config, int64_t vocab, BlockRange blocks);

// Bytes on a stage's links in one step, both neighbours together, without validation passes.
struct StepTraffic {
  uint64_t sent;
  uint64_t received;
};
StepTraffic step_traffic(const RunConfig& config, int64_t vocab, int64_t stage);

// "412 MiB: weights 31, gradients 31, ...", the largest parts first, without those below 1 MiB.
std::string describe(const MemoryPlan& plan);

}  // namespace thinpipe
