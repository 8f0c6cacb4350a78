#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace thinpipe {

double learning_rate_factor(const OptimConfig& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup) return static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  const auto after_warmup = static_cast<double>(std::max<int64_t>(1, total_steps - config.warmup));
  const double done = std::min(1.0, static_cast<double>(step - config.warmup) / after_warmup);
  const auto fall_to_floor = [&](double share) { return 1.0 - (1.0 - config.min_lr_ratio) * share; };
  switch (config.schedule) {
    case LrSchedule::kConstant:
      return 1.0;
    case LrSchedule::kLinear:
      return fall_to_floor(done);
    case LrSchedule::kCosine:
      return fall_to_floor(0.5 - 0.5 * std::cos(std::numbers::pi * done));
    case LrSchedule::kWsd: {
      // Constant until the last decay_fraction of the run, then linear.
      const double decay_steps = std::max(1.0, config.decay_fraction * static_cast<double>(total_steps));
      const double into_decay = static_cast<double>(step + 1) - (static_cast<double>(total_steps) - decay_steps);
      return fall_to_floor(std::clamp(into_decay / decay_steps, 0.0, 1.0));
    }
  }
  return 1.0;
}

}  // namespace thinpipe
