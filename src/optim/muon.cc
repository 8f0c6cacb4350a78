// Muon: the momentum of a matrix, orthogonalised by Newton-Schulz iterations for each block of columns separately.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "model/kernels/ops.h"
#include "optim/moment.h"
#include "optim/rules.h"

namespace thinpipe {
namespace {

class Muon final : public UpdateRule {
 public:
  Muon(Parameter& parameter, const OptimConfig& config, uint64_t seed)
      : parameter_(parameter),
        momentum_(config.momentum),
        m_(parameter, "m", parameter.shape, config.state, seed),
        blocks_(parameter.column_blocks) {
    if (blocks_.empty()) blocks_ = {parameter.value.size(1)};
  }

  void update(const UpdateStep& step) override {
    const auto grad = step.grad_factor == 1.0 ? parameter_.grad : parameter_.grad * step.grad_factor;
    const auto m = m_.read(0, grad.numel()).view_as(grad);
    m.lerp_(grad, 1.0 - momentum_);
    const auto direction = grad.lerp(m, momentum_);
    m_.keep(m, 0, step.count);
    if (step.rates.decay != 0) parameter_.value.mul_(1.0 - step.rates.decay);
    int64_t first = 0;
    for (const int64_t width : blocks_) {
      const auto out = static_cast<double>(parameter_.full_width > 0 ? parameter_.full_width : width);
      const double shape_factor = std::sqrt(std::max(1.0, out / static_cast<double>(direction.size(0))));
      parameter_.value.narrow(1, first, width)
          .add_(newton_schulz(direction.narrow(1, first, width)), -step.rates.lr * shape_factor);
      first += width;
    }
  }

  void change_over(const at::Tensor& q) override { m_.take_over(m_.whole().mm(q)); }

  std::vector<std::pair<std::string, at::Tensor>> state() override { return {{"m", m_.stored()}}; }

 private:
  Parameter& parameter_;
  double momentum_;
  Moment m_;
  std::vector<int64_t> blocks_;
};

}  // namespace

at::Tensor newton_schulz(const at::Tensor& matrix) {
  // The coefficients of the Muon paper: the quintic is steepest at 0, so that small singular values grow fastest.
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const bool tall = matrix.size(0) > matrix.size(1);
  auto x = tall ? matrix.t() : matrix;
  x = x / (x.norm() + 1e-7);
  for (int iteration = 0; iteration < 4; ++iteration) {
    auto gram = ops::gram(x), squared = ops::gram(gram);
    if (iteration == 0) {
      // No singular value s is above 1 now, but all may be far below. (sum of s^8)^(1/8) is a closer bound, and it
      // saves an iteration or two. It is at least rows^(-3/8), unless x is 0.
      const double bound = std::max(0.01, std::pow(squared.norm().item<double>(), 0.25));
      x.div_(bound);
      gram.div_(bound * bound);
      squared.div_(std::pow(bound, 4));
    }
    x = at::addmm(x, gram.mul_(kB).add_(squared, kC), x, kA, 1.0);
  }
  return tall ? x.t() : x;
}

std::unique_ptr<UpdateRule> make_muon(Parameter& parameter, const OptimConfig& config, uint64_t seed) {
  return std::make_unique<Muon>(parameter, config, seed);
}

std::vector<StateTensor> muon_state(const ParameterSpec& spec) { return {{"m", spec.shape}}; }

double muon_used(const ParameterSpec& spec, StateFormat state) {
  const auto elements = static_cast<double>(spec.elements()), rows = static_cast<double>(spec.rows());
  const int64_t widest = spec.column_blocks.empty()
                             ? spec.columns()
                             : *std::max_element(spec.column_blocks.begin(), spec.column_blocks.end());
  const double part = static_cast<double>(widest), gram = std::min(rows, part);
  const double copies = state == StateFormat::kBf16 ? 3 : 2;
  return copies * elements + 3 * rows * part + 2 * gram * gram;  // the direction, x and its products
}

}  // namespace thinpipe
