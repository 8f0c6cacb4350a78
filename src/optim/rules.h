// The update rules, one parameter each, and the table of them: which rule takes a parameter, at which rate, and how
// much it keeps. Another optimiser is another file and its rows in rules.cc. A rule owns the parameter's moments; the
// tensor types are the parameter's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "model/parameter.h"

namespace thinpipe {

// Learning rate and weight decay of a parameter in one step: a weight loses the share `decay` of itself.
struct Rates {
  double lr;
  double decay;
};

struct UpdateStep {
  // Number of the step, from 1, for the bias correction. Skipped steps count, though they leave the moments as they
  // are: so no counter has to be kept beside the run's own.
  int64_t count;
  Rates rates;         // schedule applied
  double grad_factor;  // what clipping multiplies every gradient with
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual void update(const UpdateStep& step) = 0;
  // The basis changed: first moments turn with the coordinates, M <- M Q; per-coordinate second moments by the squares
  // of Q's entries (METHOD 3). Only for parameters that are coordinates.
  virtual void change_over(const at::Tensor& q) = 0;
  // Moments by name ("m", "v"), to be saved and restored in place.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

// In numbers of the parameter's type: what state() holds, and what an update takes beside it for a moment.
struct StateSize {
  double kept;
  double used;
};

struct RuleKind {
  std::string_view name;
  bool (*takes)(const ParameterSpec& spec);
  Rates (*peak)(const OptimConfig& config, const ParameterSpec& spec);
  StateSize (*size)(const ParameterSpec& spec);
  std::unique_ptr<UpdateRule> (*make)(Parameter& parameter, const OptimConfig& config);
};

// The rules of an optimiser in the order in which they are asked; the last takes everything.
std::span<const RuleKind> rules_of(OptimizerKind kind);
// The first of them that takes the parameter.
const RuleKind& rule_for(OptimizerKind kind, const ParameterSpec& spec);

// AdamW (Loshchilov & Hutter): per-element moments, bias correction by the step's number, decoupled decay.
std::unique_ptr<UpdateRule> make_adamw(Parameter& parameter, const OptimConfig& config);
StateSize adamw_size(const ParameterSpec& spec);

// The paper's AdamW for matrices confined to the subspace, in coordinates (METHOD 2): one second moment per row, of
// ||(dL/dA)_i||^2 / d, so that the update is the momentum row times a scalar and W = A U^T stays in S.
std::unique_ptr<UpdateRule> make_row_adamw(Parameter& parameter, const OptimConfig& config);
StateSize row_adamw_size(const ParameterSpec& spec);

// Muon (Jordan et al.): Nesterov momentum, orthogonalised by five Newton-Schulz steps, each column block by itself,
// times sqrt(max(1, out / in)), for coordinates with out = d: NS(Y U^T) = NS(Y) U^T; decoupled decay.
std::unique_ptr<UpdateRule> make_muon(Parameter& parameter, const OptimConfig& config);
StateSize muon_size(const ParameterSpec& spec);

// The orthogonal factor of `matrix`, roughly: singular values are driven into about [0.7, 1.2].
at::Tensor newton_schulz(const at::Tensor& matrix);

}  // namespace thinpipe
