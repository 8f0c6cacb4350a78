// Muon: the momentum of a matrix, orthogonalised for each block of columns separately.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/kernels/ops.h"
#include "optim/moment.h"
#include "optim/rules.h"

namespace thinpipe {
namespace {

// Zolotarev's best approximation of 1 by x (w0 + w1 / (x^2 + p1) + w2 / (x^2 + p2)) on [1/500, 1]: its values are in
// [0.845, 1.155] there (Nakatsukasa & Freund, SIAM Review 58, 2016; tests/optim/zolotarev.py computes the numbers).
// Below 1/500 it grows from 0 with a slope of 507. Above 1 it grows slowly, so the bound of x need not be exact.
struct Pole {
  double p, w;
};
constexpr double kConstant = 0.961939909;
constexpr std::array kPoles{Pole{1.8960818e-05, 0.00921882847}, Pole{0.00918605963, 0.185277518}};

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
    auto m = m_.read(0, parameter_.grad.numel()).view_as(parameter_.grad);
    const auto direction = ops::nesterov_(m, parameter_.grad, step.grad_factor, momentum_);
    m_.keep(m, 0, step.count);
    int64_t first = 0;
    for (const int64_t width : blocks_) {
      const auto out = static_cast<double>(parameter_.full_width > 0 ? parameter_.full_width : width);
      const double shape_factor = std::sqrt(std::max(1.0, out / static_cast<double>(direction.size(0))));
      add_orthogonal(parameter_.value.narrow(1, first, width), direction.narrow(1, first, width), 1 - step.rates.decay,
                     -step.rates.lr * shape_factor);
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

// The symmetric P for which P x, x (m, n) with m <= n, has the singular vectors of x and singular values near 1. All
// work but one product is on m x m matrices.
at::Tensor whitener(const at::Tensor& x) {
  const auto gram = ops::gram(x);
  // In float32, squares of tiny gradients would vanish: the trace brings all numbers near 1 first. It is not 0 if x is.
  const double trace = gram.diagonal().sum().item<double>() + 1e-14;
  gram.div_(trace);
  // (sum of s^4)^(1/4) is at least the largest singular value s, and not far above it where they decay.
  const double bound = std::max(1e-6, gram.norm().item<double>());
  gram.div_(bound);
  auto p = at::zeros_like(gram);
  p.diagonal().fill_(kConstant);
  for (const auto& pole : kPoles) {
    auto shifted = gram.clone();
    shifted.diagonal().add_(pole.p);
    p.add_(ops::inverse_of_positive(shifted), pole.w);
  }
  return p.div_(std::sqrt(bound * trace));
}

}  // namespace

void add_orthogonal(const at::Tensor& value, const at::Tensor& matrix, double keep, double factor) {
  if (matrix.size(0) <= matrix.size(1)) {
    value.addmm_(whitener(matrix), matrix, keep, factor);
  } else {
    value.addmm_(matrix, whitener(matrix.t()), keep, factor);
  }
}

std::unique_ptr<UpdateRule> make_muon(Parameter& parameter, const OptimConfig& config, uint64_t seed) {
  return std::make_unique<Muon>(parameter, config, seed);
}

std::vector<StateTensor> muon_state(const ParameterSpec& spec) { return {{"m", spec.shape}}; }

double muon_used(const ParameterSpec& spec, StateFormat state) {
  const int64_t widest = spec.column_blocks.empty()
                             ? spec.columns()
                             : *std::max_element(spec.column_blocks.begin(), spec.column_blocks.end());
  const auto gram = static_cast<double>(std::min(spec.rows(), widest));
  const double copies = state == StateFormat::kBf16 ? 3 : 2;  // of the matrix: the direction among them
  return copies * static_cast<double>(spec.elements()) + 4 * gram * gram;
}

}  // namespace thinpipe
