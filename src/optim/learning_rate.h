// The learning rate's course over a run, as a factor of its peak: linear warm-up, then the schedule.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace thinpipe {

// step counts from 0 and total_steps is the run's length; pure.
double learning_rate_factor(const OptimConfig& config, int64_t step, int64_t total_steps);

}  // namespace thinpipe
