// The rules on coordinates (METHOD 2, 3). A and E represent W = A U^T, so each rule is compared with its d-wide form,
// written here on W and on the projected gradient g UU^T, and the change of the moments with its formulas, element by
// element. The d-wide forms share no code with the rules.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/basis.h"
#include "optim/optimizer.h"
#include "optim/random_parameters.h"

namespace thinpipe {
namespace {

constexpr int64_t kWidth = 24, kRank = 3;  // d, k
constexpr double kGradFactor = 0.5;
// Both sides round in double at every step, a handful of steps with sums of at most a thousand terms of order one.
constexpr double kRounding = 1e-12;

OptimConfig config_of(OptimizerKind kind) {
  OptimConfig config;
  config.kind = kind;
  config.lr = 0.03;
  config.adamw_lr = 0.002;
  config.embedding_lr_scale = 5.0;
  config.warmup = 0;
  config.schedule = LrSchedule::kConstant;
  return config;
}

Parameter& add_coordinates(RandomParameters& set, const std::string& name, ParameterKind kind, int64_t rows) {
  auto& parameter = set.add_random(name, kind, {rows, kRank}, 1.0);
  parameter.full_width = kWidth;
  return parameter;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// How far each row has moved: one norm per row.
at::Tensor row_norms(const at::Tensor& moved) { return moved.square().sum(1).sqrt(); }

// W = A U^T under a rule that keeps it in S, as in the paper: everything d wide.
struct WideMatrix {
  at::Tensor u;  // (d, k)
  at::Tensor w;  // (n, d)
  at::Tensor m;  // (n, d)

  at::Tensor project(const at::Tensor& rows) const { return rows.mm(u).mm(u.t()); }
  void change_over(const at::Tensor& next) {
    u = next;
    w = project(w);
    m = project(m);
  }
};

// Trains A with the rule and W with `wide_step(wide, projected gradient, number)` on the same dL/dW, changes the
// subspace half way, and compares A U^T with W after every step.
template <typename WideStep>
void expect_same_as_wide(const OptimConfig& config, ParameterKind kind, int64_t rows, const WideStep& wide_step) {
  RandomParameters set(1, kDoubles);
  auto& a = add_coordinates(set, "a", kind, rows);
  Optimizer optimizer(config, 10, set, 1);
  WideMatrix wide;
  wide.u = make_basis(1, kWidth, kRank).u;
  wide.w = a.value.mm(wide.u.t());
  wide.m = at::zeros({rows, kWidth}, kDoubles);
  for (int64_t step = 0; step < 6; ++step) {
    const auto gradient = random_tensor({rows, kWidth}, 100 + static_cast<uint64_t>(step));
    a.grad.copy_(gradient.mm(wide.u));
    optimizer.apply(step, kGradFactor);
    wide_step(wide, wide.project(gradient * kGradFactor), step);
    EXPECT_LT(largest_difference(a.value.mm(wide.u.t()), wide.w), kRounding) << "step " << step;
    if (step != 2) continue;
    const auto next = make_basis(2, kWidth, kRank).u, q = wide.u.t().mm(next);
    a.value.copy_(a.value.mm(q));
    optimizer.change_over(q);
    wide.change_over(next);
  }
}

// ---- the d-wide forms ----

// Muon's rational function of the singular values of the matrix itself, by its singular value decomposition.
at::Tensor wide_orthogonal(const at::Tensor& matrix) {
  const auto [u, s, vh] = at::linalg_svd(matrix, /*full_matrices=*/false);
  const auto x = s / std::pow(s.pow(4).sum().item<double>(), 0.25);
  const auto y =
      x * (0.961939909 + 0.00921882847 / (x.square() + 1.8960818e-05) + 0.185277518 / (x.square() + 0.00918605963));
  return (u * y).mm(vh);
}

TEST(MuonOnCoordinates, IsLiteralMuonOnTheProjectedGradient) {
  auto config = config_of(OptimizerKind::kMuon);
  config.weight_decay = 0.2;
  // Fewer rows than d (the shape factor is sqrt(d / n), where n x k would give 1), as many as k, and more than d.
  for (const int64_t rows : {int64_t{6}, kRank, 2 * kWidth}) {
    SCOPED_TRACE(rows);
    const auto wide_muon = [&](WideMatrix& wide, const at::Tensor& gradient, int64_t) {
      const double mu = config.momentum;
      wide.m = mu * wide.m + (1 - mu) * gradient;
      const auto direction = mu * wide.m + (1 - mu) * gradient;
      const double shape_factor = std::sqrt(std::max(1.0, static_cast<double>(kWidth) / static_cast<double>(rows)));
      wide.w = (1 - config.lr * config.weight_decay) * wide.w - config.lr * shape_factor * wide_orthogonal(direction);
    };
    expect_same_as_wide(config, ParameterKind::kCoordinates, rows, wide_muon);
  }
}

TEST(RowAdamwOnCoordinates, IsAdamwWithTheWideRowsMeanSquare) {
  auto config = config_of(OptimizerKind::kRowAdamw);
  config.weight_decay = 0.2;
  for (const auto kind : {ParameterKind::kCoordinates, ParameterKind::kEmbeddingCoordinates}) {
    const int64_t rows = 7;
    std::vector<double> v(rows);
    const auto wide_row_adamw = [&](WideMatrix& wide, const at::Tensor& gradient, int64_t step) {
      const double b1 = config.beta1, b2 = config.beta2, count = static_cast<double>(step + 1);
      wide.m = b1 * wide.m + (1 - b1) * gradient;
      for (int64_t i = 0; i < rows; ++i) {
        auto& v_i = v[static_cast<size_t>(i)];  // the change of basis does not affect it
        v_i = b2 * v_i + (1 - b2) * gradient[i].square().mean().item<double>();
        const auto m_hat = wide.m[i] / (1 - std::pow(b1, count));
        const double v_hat = v_i / (1 - std::pow(b2, count));
        wide.w[i].copy_((1 - config.lr * config.weight_decay) * wide.w[i] -
                        config.lr * m_hat / (std::sqrt(v_hat) + config.eps));
      }
    };
    expect_same_as_wide(config, kind, rows, wide_row_adamw);
  }
}

// ---- the same learning rate has the same effect ----

TEST(AdamwOnCoordinates, FirstStepMovesARowByLrSqrtDLikeRowAdamw) {
  // In the first step mhat / sqrt(vhat) is the sign of a coordinate, or with a moment per row the row over its root
  // mean square of d; the only difference is eps = 1e-8 beside gradients of order one.
  const double expected = config_of(OptimizerKind::kAdamw).lr * std::sqrt(static_cast<double>(kWidth));
  for (const auto optimizer_kind : {OptimizerKind::kAdamw, OptimizerKind::kRowAdamw}) {
    for (const auto kind : {ParameterKind::kCoordinates, ParameterKind::kEmbeddingCoordinates}) {
      RandomParameters set(1, kDoubles);
      auto& a = add_coordinates(set, "a", kind, 5);
      const auto before = a.value.clone();
      a.grad.copy_(random_tensor({5, kRank}, 7));
      Optimizer(config_of(optimizer_kind), 10, set, 1).apply(0, 1.0);
      EXPECT_LT(largest_difference(row_norms(a.value - before), at::full({5}, expected, kDoubles)), 1e-5 * expected);
    }
  }
}

// Compares a (4, k) parameter with AdamW's recurrence per element with this learning rate. A parameter that holds
// coordinates (full_width > 0) learns sqrt(d/k) times as fast, and decays at `lr` like any other.
void expect_adamw_with(double lr, const OptimConfig& config, ParameterKind kind, int64_t full_width) {
  const double factor = full_width > 0 ? std::sqrt(static_cast<double>(full_width) / static_cast<double>(kRank)) : 1.0;
  RandomParameters set(1, kDoubles);
  auto& parameter = set.add_random("p", kind, {4, kRank}, 1.0);
  parameter.full_width = full_width;
  Optimizer optimizer(config, 10, set, 1);
  auto w = parameter.value.clone(), m = at::zeros_like(w), v = at::zeros_like(w);
  for (int64_t step = 0; step < 4; ++step) {
    parameter.grad.copy_(random_tensor({4, kRank}, 40 + static_cast<uint64_t>(step)));
    optimizer.apply(step, 1.0);
    const double count = static_cast<double>(step + 1);
    m = config.beta1 * m + (1 - config.beta1) * parameter.grad;
    v = config.beta2 * v + (1 - config.beta2) * parameter.grad * parameter.grad;
    const auto m_hat = m / (1 - std::pow(config.beta1, count)), v_hat = v / (1 - std::pow(config.beta2, count));
    w = (1 - lr * config.weight_decay) * w - lr * factor * m_hat / (v_hat.sqrt() + config.eps);
    EXPECT_LT(largest_difference(parameter.value, w), kRounding) << "step " << step;
  }
}

TEST(AdamwOnCoordinates, LearnsSqrtDOverKTimesAsFastAndDecaysLikeAMatrix) {
  auto adamw = config_of(OptimizerKind::kAdamw);
  for (const double decay : {0.0, 0.2}) {
    SCOPED_TRACE(decay);
    adamw.weight_decay = decay;
    expect_adamw_with(adamw.lr, adamw, ParameterKind::kCoordinates, kWidth);
    expect_adamw_with(adamw.lr, adamw, ParameterKind::kEmbeddingCoordinates, kWidth);
    expect_adamw_with(adamw.lr, adamw, ParameterKind::kMatrix, 0);
  }
}

TEST(AdamwOnCoordinates, UpdatesEmbeddingAndHeadWithAdamwRatesInAMuonRun) {
  auto muon = config_of(OptimizerKind::kMuon);
  const double embedding_lr = muon.adamw_lr * muon.embedding_lr_scale;
  for (const double decay : {0.0, 0.2}) {
    SCOPED_TRACE(decay);
    muon.weight_decay = decay;
    expect_adamw_with(embedding_lr, muon, ParameterKind::kEmbeddingCoordinates, kWidth);
    expect_adamw_with(embedding_lr, muon, ParameterKind::kEmbedding, 0);
    expect_adamw_with(muon.adamw_lr, muon, ParameterKind::kHead, 0);
  }
}

// ---- the change-over ----

std::map<std::string, at::Tensor> copies_of(Optimizer& optimizer) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& moment : optimizer.state()) {
    copies[moment.parameter->name + "." + moment.name] = moment.tensor.clone();
  }
  return copies;
}

// (M Q)_ij, or with `squared` (V (Q o Q))_ij, as sums.
at::Tensor turned(const at::Tensor& moments, const at::Tensor& q, bool squared) {
  auto result = at::zeros_like(moments);
  for (int64_t i = 0; i < moments.size(0); ++i) {
    for (int64_t j = 0; j < kRank; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < kRank; ++l) {
        const double entry = q[l][j].item<double>();
        sum += moments[i][l].item<double>() * (squared ? entry * entry : entry);
      }
      result[i][j].fill_(sum);
    }
  }
  return result;
}

TEST(ChangeOver, MultipliesFirstMomentsByQAndSecondMomentsByItsSquares) {
  // Not symmetric, with negative entries, so that Q^T or |Q| would fail.
  const auto q = make_basis(1, kWidth, kRank).u.t().mm(make_basis(2, kWidth, kRank).u);
  for (const auto kind : {OptimizerKind::kAdamw, OptimizerKind::kRowAdamw, OptimizerKind::kMuon}) {
    SCOPED_TRACE(static_cast<int>(kind));
    RandomParameters set(1, kDoubles);
    add_coordinates(set, "a", ParameterKind::kCoordinates, 5);
    add_coordinates(set, "e", ParameterKind::kEmbeddingCoordinates, 4);
    set.add_random("dense", ParameterKind::kMatrix, {5, kRank}, 1.0);
    Optimizer optimizer(config_of(kind), 10, set, 1);
    uint64_t stream = 60;
    for (int64_t step = 0; step < 2; ++step) {
      for (auto& parameter : set.all()) parameter.grad.copy_(random_tensor(parameter.grad.sizes(), ++stream));
      optimizer.apply(step, 1.0);
    }
    std::map<std::string, at::Tensor> values;
    for (const auto& parameter : set.all()) values[parameter.name] = parameter.value.clone();
    const auto before = copies_of(optimizer);
    optimizer.change_over(q);
    for (const auto& [name, after] : copies_of(optimizer)) {
      const auto& old = before.at(name);
      if (name.starts_with("dense.") || old.size(1) == 1) {  // not coordinates; a moment per row
        EXPECT_TRUE(at::equal(after, old)) << name;
      } else {
        EXPECT_LT(largest_difference(after, turned(old, q, name.ends_with(".v"))), 1e-14) << name;
        EXPECT_GT(largest_difference(after, old), 1e-3) << name;
      }
    }
    // The stage itself changes the parameters.
    for (const auto& parameter : set.all()) EXPECT_TRUE(at::equal(parameter.value, values.at(parameter.name)));
  }
}

}  // namespace
}  // namespace thinpipe
