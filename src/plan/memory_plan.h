// What a stage asks of a machine, from the config alone: memory, the state it is sent first, bytes per step. `doctor`
// and `join` compare it with what the machine has before anything is downloaded. Parameters come from
// config/model_spec.h, moments from the optimiser's rules, messages from the boundary.
#pragma once

#include <cstdint>
#include <string>

#include "config/model_spec.h"
#include "config/run_config.h"

namespace thinpipe {

// Bytes, an upper estimate of the resident memory at its peak: where a number depends on the text or on the speed of a
// link, the worst case is taken (docs/joining.md has estimates beside measurements). On a GPU all but queues,
// checkpoint_copy and base are the GPU's.
struct MemoryPlan {
  uint64_t parameters = 0;       // weights; in a subspace model the basis and the frozen token table as well
  uint64_t gradients = 0;        // and the second moment by which the subspace moves
  uint64_t optimizer = 0;        // moments, and what an update of the largest weight takes
  uint64_t activations = 0;      // of the microbatches in flight, and what one pass takes beside them
  uint64_t logits = 0;           // last stage only
  uint64_t queues = 0;           // messages under way on its links
  uint64_t checkpoint_copy = 0;  // of an asynchronous checkpoint, or of the one it takes over at the start
  uint64_t base = 0;             // the program and libtorch

  uint64_t total() const;
};

// The config must be validated, `stage` one of its stages, here and below.
MemoryPlan memory_plan(const RunConfig& config, int64_t vocab, int64_t stage);
// The same if that stage had these blocks, whatever the cuts say.
MemoryPlan memory_plan(const RunConfig& config, int64_t vocab, int64_t stage, BlockRange blocks);

// Numbers that the stage keeps of one microbatch from its forward to its backward pass.
double kept_per_microbatch(const RunConfig& config, int64_t vocab, BlockRange blocks);

// Most microbatches the stage ever holds. The coordinator chooses 1f1b's warm-up by the time that messages take on the
// lines as it measures them (docs/schedules.md), so it may grow to all of them, at every stage but the last.
int64_t most_in_flight(const RunConfig& config, int64_t stage);

// What a checkpoint holds of these blocks, and so what somebody who takes them over is sent first.
uint64_t state_bytes(const RunConfig& config, int64_t vocab, BlockRange blocks);

// What a stage's links carry in one step, both neighbours together; validation passes not counted.
struct StepTraffic {
  uint64_t sent;
  uint64_t received;
};
StepTraffic step_traffic(const RunConfig& config, int64_t vocab, int64_t stage);

// "412 MiB: weights 31, gradients 31, ...", the largest parts first, those below 1 MiB left out.
std::string describe(const MemoryPlan& plan);

}  // namespace thinpipe
