// AdamW with decoupled weight decay, and its form for coordinates, whose second moment is one number per row.
#include <ATen/ATen.h>

#include <cmath>

#include "optim/rules.h"

namespace thinpipe {
namespace {

class Adamw final : public UpdateRule {
 public:
  Adamw(Parameter& parameter, const OptimConfig& config, double weight_decay)
      : parameter_(parameter),
        config_(config),
        weight_decay_(weight_decay),
        m_(at::zeros_like(parameter.value)),
        v_(at::zeros_like(parameter.value)) {}

  void update(const UpdateStep& step) override {
    const auto grad = step.grad_factor == 1.0 ? parameter_.grad : parameter_.grad * step.grad_factor;
    m_.mul_(config_.beta1).add_(grad, 1.0 - config_.beta1);
    v_.mul_(config_.beta2).addcmul_(grad, grad, 1.0 - config_.beta2);
    const auto count = static_cast<double>(step.count);
    const double m_correction = 1.0 - std::pow(config_.beta1, count);
    const double v_correction = 1.0 - std::pow(config_.beta2, count);
    const auto denominator = v_.sqrt().div_(std::sqrt(v_correction)).add_(config_.eps);
    if (weight_decay_ != 0) parameter_.value.mul_(1.0 - step.lr * weight_decay_);
    parameter_.value.addcdiv_(m_, denominator, -step.lr / m_correction);
  }

  void change_over(const at::Tensor& q) override {
    m_.copy_(m_.mm(q));
    v_.copy_(v_.mm(q.square()));
  }

  std::vector<std::pair<std::string, at::Tensor>> state() override { return {{"m", m_}, {"v", v_}}; }

 private:
  Parameter& parameter_;
  OptimConfig config_;
  double weight_decay_;
  at::Tensor m_, v_;
};

class RowAdamw final : public UpdateRule {
 public:
  RowAdamw(Parameter& parameter, const OptimConfig& config, double weight_decay)
      : parameter_(parameter),
        config_(config),
        weight_decay_(weight_decay),
        m_(at::zeros_like(parameter.value)),
        v_(at::zeros({parameter.value.size(0), 1}, parameter.value.options())) {}

  void update(const UpdateStep& step) override {
    const auto grad = step.grad_factor == 1.0 ? parameter_.grad : parameter_.grad * step.grad_factor;
    m_.mul_(config_.beta1).add_(grad, 1.0 - config_.beta1);
    const double per_element = 1.0 / static_cast<double>(parameter_.full_width);
    v_.mul_(config_.beta2).add_(grad.square().sum(1, /*keepdim=*/true), (1.0 - config_.beta2) * per_element);
    const auto count = static_cast<double>(step.count);
    const double m_correction = 1.0 - std::pow(config_.beta1, count);
    const double v_correction = 1.0 - std::pow(config_.beta2, count);
    const auto denominator = v_.sqrt().div_(std::sqrt(v_correction)).add_(config_.eps);
    if (weight_decay_ != 0) parameter_.value.mul_(1.0 - step.lr * weight_decay_);
    parameter_.value.addcdiv_(m_, denominator, -step.lr / m_correction);
  }

  void change_over(const at::Tensor& q) override { m_.copy_(m_.mm(q)); }  // a row's norm does not turn

  std::vector<std::pair<std::string, at::Tensor>> state() override { return {{"m", m_}, {"v", v_}}; }

 private:
  Parameter& parameter_;
  OptimConfig config_;
  double weight_decay_;
  at::Tensor m_;  // (rows, k)
  at::Tensor v_;  // (rows, 1)
};

}  // namespace

std::unique_ptr<UpdateRule> make_row_adamw(Parameter& parameter, const OptimConfig& config, double weight_decay) {
  return std::make_unique<RowAdamw>(parameter, config, weight_decay);
}

std::unique_ptr<UpdateRule> make_adamw(Parameter& parameter, const OptimConfig& config, double weight_decay) {
  return std::make_unique<Adamw>(parameter, config, weight_decay);
}

}  // namespace thinpipe
