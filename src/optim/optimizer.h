// The optimizer of one stage: a rule per parameter, the learning rate schedule, and the two halves of exact global-norm
// clipping: this stage's part of the squared norm, and an update that takes the factor computed from all parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "optim/rules.h"

namespace thinpipe {

// The factor on every gradient that brings the norm of all of them to at most `clip` (0: no clipping).
double clip_factor(double squared_norm, double clip);

class Optimizer {
 public:
  // `parameters` must outlive the optimizer. seed: the run's, for the rounding of moments that are kept in bf16.
  Optimizer(const OptimConfig& config, int64_t total_steps, ParameterSet& parameters, uint64_t seed);

  // The sum of squares of this stage's gradients, in double, in the order of the parameters.
  double squared_norm() const;
  // Applies the update of step `step` (from 0; earlier steps may have been skipped). Does not change the gradients.
  void apply(int64_t step, double grad_factor);
  // Call it after the stage's change_over, with the Q that this returned.
  void change_over(const at::Tensor& q);

  // All moments, to be saved, and restored in place.
  struct SavedMoment {
    const Parameter* parameter;
    std::string name;  // "m"
    at::Tensor tensor;
  };
  std::vector<SavedMoment> state();

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
