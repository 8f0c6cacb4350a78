// The optimiser of one stage: a rule per parameter, the learning rate's schedule, and the two halves of exact
// global-norm clipping - this stage's share of the squared norm, and an update that takes the factor computed from all
// shares.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "optim/rules.h"

namespace thinpipe {

// What every gradient is multiplied with so that the norm of all of them is at most `clip` (0: never clip).
double clip_factor(double squared_norm, double clip);

class Optimizer {
 public:
  // `parameters` must outlive it.
  Optimizer(const OptimConfig& config, int64_t total_steps, ParameterSet& parameters);

  // Sum of the squares of this stage's gradients, in double, parameters in order.
  double squared_norm() const;
  // Applies the update of step `step` (from 0; some before it may have been skipped) and leaves the gradients alone.
  void apply(int64_t step, double grad_factor);
  // After the stage's change_over, with the Q it returned.
  void change_over(const at::Tensor& q);

  // Every moment, to be saved and restored in place.
  struct Moment {
    const Parameter* parameter;
    std::string name;  // "m"
    at::Tensor tensor;
  };
  std::vector<Moment> state();

 private:
  struct Entry {
    Parameter* parameter;
    std::unique_ptr<UpdateRule> rule;
    Rates peak;
  };

  OptimConfig config_;
  int64_t total_steps_;
  std::vector<Entry> entries_;
};

}  // namespace thinpipe
