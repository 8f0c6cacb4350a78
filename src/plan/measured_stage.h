// What a stage takes for real: builds it, runs a step on made-up tokens and asks the system for the peak of resident
// memory. `thinpipe plan --measure` and tests compare it with the memory plan.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "plan/memory_plan.h"

namespace thinpipe {

struct MeasuredStage {
  uint64_t before = 0;  // resident bytes before the stage was built
  uint64_t built = 0;   // with weights, gradients and moments
  uint64_t peak = 0;    // until the update was done
  double step_s = 0;    // all passes and the update
};

// Needs a validated config and one of its stages. The tokens and the number of microbatches in flight are those that
// take the most memory, as in the plan. There are no links and no checkpoints.
MeasuredStage measure_stage(const RunConfig& config, int64_t vocab, int64_t stage);

// The part of the plan that measure_stage() takes, without the program itself.
uint64_t measured_part(const MemoryPlan& plan);

}  // namespace thinpipe
