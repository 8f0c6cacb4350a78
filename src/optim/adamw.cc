// AdamW with decoupled weight decay, and its form for coordinates, whose second moment is one number per row.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "optim/moment.h"
#include "optim/rules.h"

namespace thinpipe {
namespace {

// An update goes through a parameter in pieces of about this many numbers, so that its temporary numbers stay in the
// cache and need no memory worth counting.
constexpr int64_t kNumbersAtOnce = 1 << 16;

// Both rules are the same recurrence. They differ in the second moment: one per element, or one per row (METHOD 2).
class Adamw final : public UpdateRule {
 public:
  Adamw(Parameter& parameter, const OptimConfig& config, uint64_t seed, bool per_row)
      : parameter_(parameter),
        config_(config),
        per_row_(per_row),
        width_(per_row ? parameter.columns() : 1),
        m_(parameter, "m", parameter.shape, config.state, seed),
        v_(parameter, "v", per_row ? std::vector<int64_t>{parameter.rows(), 1} : parameter.shape, config.state, seed) {}

  void update(const UpdateStep& step) override {
    const int64_t rows = parameter_.value.numel() / width_, at_once = std::max<int64_t>(1, kNumbersAtOnce / width_);
    for (int64_t first = 0; first < rows; first += at_once) update(step, first, std::min(at_once, rows - first));
  }

  void change_over(const at::Tensor& q) override {
    m_.take_over(m_.whole().mm(q));
    if (!per_row_) v_.take_over(v_.whole().mm(q.square()));  // the norm of a row does not change
  }

  std::vector<std::pair<std::string, at::Tensor>> state() override { return {{"m", m_.stored()}, {"v", v_.stored()}}; }

 private:
  // The rows [first, first + count), each of width_ numbers and with one second moment.
  void update(const UpdateStep& step, int64_t first, int64_t count) {
    const auto rows_of = [&](const at::Tensor& all) { return all.view({-1, width_}).narrow(0, first, count); };
    auto value = rows_of(parameter_.value), grad = rows_of(parameter_.grad);
    if (step.grad_factor != 1.0) grad = grad * step.grad_factor;
    auto m = m_.read(first * width_, count * width_).view({count, width_}), v = v_.read(first, count).view({count, 1});
    m.mul_(config_.beta1).add_(grad, 1.0 - config_.beta1);
    v.mul_(config_.beta2);
    if (per_row_) {
      const double share = (1.0 - config_.beta2) / static_cast<double>(parameter_.full_width);
      v.add_(grad.square().sum(1, /*keepdim=*/true), share);
    } else {
      v.addcmul_(grad, grad, 1.0 - config_.beta2);
    }
    const auto steps = static_cast<double>(step.count);
    const double m_correction = 1.0 - std::pow(config_.beta1, steps);
    const double v_correction = 1.0 - std::pow(config_.beta2, steps);
    const auto denominator = v.sqrt().div_(std::sqrt(v_correction)).add_(config_.eps);
    if (step.rates.decay != 0) value.mul_(1.0 - step.rates.decay);
    value.addcdiv_(m, denominator, -step.rates.lr / m_correction);
    m_.keep(m, first * width_, step.count);
    v_.keep(v, first, step.count);
  }

  Parameter& parameter_;
  OptimConfig config_;
  bool per_row_;
  int64_t width_;  // numbers that share a second moment
  Moment m_;
  Moment v_;  // the parameter's shape, or (rows, 1)
};

}  // namespace

std::unique_ptr<UpdateRule> make_adamw(Parameter& parameter, const OptimConfig& config, uint64_t seed) {
  return std::make_unique<Adamw>(parameter, config, seed, /*per_row=*/false);
}

std::unique_ptr<UpdateRule> make_row_adamw(Parameter& parameter, const OptimConfig& config, uint64_t seed) {
  return std::make_unique<Adamw>(parameter, config, seed, /*per_row=*/true);
}

std::vector<StateTensor> adamw_state(const ParameterSpec& spec) { return {{"m", spec.shape}, {"v", spec.shape}}; }

std::vector<StateTensor> row_adamw_state(const ParameterSpec& spec) {
  return {{"m", spec.shape}, {"v", {spec.rows(), 1}}};
}

double adamw_used(const ParameterSpec& spec, StateFormat) {
  // The gradient times the clip factor, the denominator and its square root, and copies of both moments.
  const auto numbers = std::min<double>(static_cast<double>(spec.elements()), kNumbersAtOnce);
  return 5 * numbers;
}

}  // namespace thinpipe
