// AdamW with decoupled weight decay, and its form for coordinates, whose second moment is one number per row.
#include <ATen/ATen.h>

#include <cmath>

#include "optim/rules.h"

namespace thinpipe {
namespace {

// Both rules are the same recurrence. They differ in the second moment: one per element, or one per row (METHOD 2).
class Adamw final : public UpdateRule {
 public:
  Adamw(Parameter& parameter, const OptimConfig& config, bool per_row)
      : parameter_(parameter),
        config_(config),
        per_row_(per_row),
        m_(at::zeros_like(parameter.value)),
        v_(per_row ? at::zeros({parameter.value.size(0), 1}, parameter.value.options()) : at::zeros_like(m_)) {}

  void update(const UpdateStep& step) override {
    const auto grad = step.grad_factor == 1.0 ? parameter_.grad : parameter_.grad * step.grad_factor;
    m_.mul_(config_.beta1).add_(grad, 1.0 - config_.beta1);
    v_.mul_(config_.beta2);
    if (per_row_) {
      const double share = (1.0 - config_.beta2) / static_cast<double>(parameter_.full_width);
      v_.add_(grad.square().sum(1, /*keepdim=*/true), share);
    } else {
      v_.addcmul_(grad, grad, 1.0 - config_.beta2);
    }
    const auto count = static_cast<double>(step.count);
    const double m_correction = 1.0 - std::pow(config_.beta1, count);
    const double v_correction = 1.0 - std::pow(config_.beta2, count);
    const auto denominator = v_.sqrt().div_(std::sqrt(v_correction)).add_(config_.eps);
    if (step.rates.decay != 0) parameter_.value.mul_(1.0 - step.rates.decay);
    parameter_.value.addcdiv_(m_, denominator, -step.rates.lr / m_correction);
  }

  void change_over(const at::Tensor& q) override {
    m_.copy_(m_.mm(q));
    if (!per_row_) v_.copy_(v_.mm(q.square()));  // the norm of a row does not change
  }

  std::vector<std::pair<std::string, at::Tensor>> state() override { return {{"m", m_}, {"v", v_}}; }

 private:
  Parameter& parameter_;
  OptimConfig config_;
  bool per_row_;
  at::Tensor m_;
  at::Tensor v_;  // the parameter's shape, or (rows, 1)
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(Parameter& parameter, const OptimConfig& config) {
  return std::make_unique<Adamw>(parameter, config, /*per_row=*/false);
}

std::unique_ptr<UpdateRule> make_row_adamw(Parameter& parameter, const OptimConfig& config) {
  return std::make_unique<Adamw>(parameter, config, /*per_row=*/true);
}

std::vector<StateTensor> adamw_state(const ParameterSpec& spec) { return {{"m", spec.shape}, {"v", spec.shape}}; }

std::vector<StateTensor> row_adamw_state(const ParameterSpec& spec) {
  return {{"m", spec.shape}, {"v", {spec.rows(), 1}}};
}

double adamw_used(const ParameterSpec& spec) { return 2 * static_cast<double>(spec.elements()); }

}  // namespace thinpipe
