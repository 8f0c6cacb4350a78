// The update rules, each for one parameter, and the table of rules: which rule updates a parameter, with which rates,
// and how much state it keeps. A new optimizer is a new file and its rows in rules.cc. A rule owns the parameter's
// moments (moment.h).
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

// Learning rate and weight decay of a parameter in one step: a weight w loses decay * w.
struct Rates {
  double lr;
  double decay;
};

struct UpdateStep {
  // Number of the step, from 1, for the bias correction. Skipped steps count too, although they do not change the
  // moments: so the run's own step number is enough.
  int64_t count;
  Rates rates;         // after the schedule
  double grad_factor;  // the factor of clipping
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual void update(const UpdateStep& step) = 0;
  // The basis changed: first moments change like the coordinates, M <- M Q; per-coordinate second moments by the
  // squares of Q's entries (METHOD 3). Only for parameters that are coordinates.
  virtual void change_over(const at::Tensor& q) = 0;
  // Moments by name ("m", "v"), to be saved, and restored in place.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

// A tensor of state(). Its type is the parameter's, or bf16 with optim.state = "bf16".
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// At most this many parameters are updated at the same time, each by a thread: the temporary memory is theirs together.
inline constexpr int kUpdatesAtOnce = 4;

struct RuleKind {
  std::string_view name;
  bool (*takes)(const ParameterSpec& spec);
  Rates (*peak)(const OptimConfig& config, const ParameterSpec& spec);
  std::vector<StateTensor> (*state)(const ParameterSpec& spec);
  // Numbers of temporary memory during an update.
  double (*used)(const ParameterSpec& spec, StateFormat state);
  // seed: the run's, for the rounding of moments.
  std::unique_ptr<UpdateRule> (*make)(Parameter& parameter, const OptimConfig& config, uint64_t seed);
};

// The rules of an optimizer in the order in which they are tried; the last one takes every parameter.
std::span<const RuleKind> rules_of(OptimizerKind kind);
// Numbers in the moments of a parameter together.
double numbers_in(const std::vector<StateTensor>& state);
// The first of them that takes this parameter.
const RuleKind& rule_for(OptimizerKind kind, const ParameterSpec& spec);

// AdamW (Loshchilov & Hutter): per-element moments, bias correction by the step's number, decoupled decay.
std::unique_ptr<UpdateRule> make_adamw(Parameter& parameter, const OptimConfig& config, uint64_t seed);
std::vector<StateTensor> adamw_state(const ParameterSpec& spec);
double adamw_used(const ParameterSpec& spec, StateFormat state);

// The paper's AdamW for matrices confined to the subspace, in coordinates (METHOD 2): one second moment per row, of
// ||(dL/dA)_i||^2 / d, so that the update is the momentum row times a scalar and W = A U^T stays in S.
std::unique_ptr<UpdateRule> make_row_adamw(Parameter& parameter, const OptimConfig& config, uint64_t seed);
std::vector<StateTensor> row_adamw_state(const ParameterSpec& spec);

// Muon (Jordan et al.): Nesterov momentum, orthogonalised by a rational function of its singular values for each column
// block separately, times sqrt(max(1, out / in)); for coordinates out = d, because O(Y U^T) = O(Y) U^T. Decoupled
// decay.
std::unique_ptr<UpdateRule> make_muon(Parameter& parameter, const OptimConfig& config, uint64_t seed);
std::vector<StateTensor> muon_state(const ParameterSpec& spec);
double muon_used(const ParameterSpec& spec, StateFormat state);

// value = keep * value + factor * O. O approximates the orthogonal factor of `matrix`: singular values from a 500th
// of the largest on are driven into about [0.8, 1.2].
void add_orthogonal(const at::Tensor& value, const at::Tensor& matrix, double keep, double factor);

}  // namespace thinpipe
