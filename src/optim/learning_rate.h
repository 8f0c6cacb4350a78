// The learning rate over a run, as a factor of its peak: linear warm-up, then the schedule.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace thinpipe {

// A pure function. step counts from 0; total_steps is the length of the run.
double learning_rate_factor(const OptimConfig& config, int64_t step, int64_t total_steps);

}  // namespace thinpipe
