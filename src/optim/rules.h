// The update rules, one parameter each. A rule owns the parameter's moments; the tensor types are the parameter's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "model/parameter.h"

namespace thinpipe {

struct UpdateStep {
  int64_t count;       // updates including this one, from 1
  double lr;           // of this parameter's rule, schedule applied
  double grad_factor;  // what clipping multiplies every gradient with
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual void update(const UpdateStep& step) = 0;
  // Moments by name ("m", "v"), to be saved and restored in place.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

// AdamW (Loshchilov & Hutter): per-element moments, bias correction, decoupled decay.
std::unique_ptr<UpdateRule> make_adamw(Parameter& parameter, const OptimConfig& config, double weight_decay);

// Muon (Jordan et al.): Nesterov momentum, orthogonalised by five Newton-Schulz steps, each column block by itself, times
// sqrt(max(1, out / in)); decoupled decay.
std::unique_ptr<UpdateRule> make_muon(Parameter& parameter, const OptimConfig& config, double weight_decay);

// The orthogonal factor of `matrix`, roughly: singular values are driven into about [0.7, 1.2].
at::Tensor newton_schulz(const at::Tensor& matrix);

}  // namespace thinpipe
