#include "optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "optim/random_parameters.h"

namespace thinpipe {
namespace {

OptimConfig plain_adamw() {
  OptimConfig config;
  config.kind = OptimizerKind::kAdamw;
  config.lr = 0.01;
  config.weight_decay = 0.1;
  config.warmup = 0;
  config.schedule = LrSchedule::kConstant;
  return config;
}

TEST(Adamw, MatchesTheRecurrencePerElement) {
  const auto config = plain_adamw();
  RandomParameters set(1, kDoubles);
  auto& parameter = set.add_random("w", ParameterKind::kMatrix, {3, 4}, 1.0);
  Optimizer optimizer(config, 10, set, 1);
  std::vector<double> w(12), m(12), v(12);
  for (int i = 0; i < 12; ++i) w[i] = parameter.value.view({-1})[i].item<double>();
  for (int step = 0; step < 5; ++step) {
    parameter.grad.copy_(random_tensor({3, 4}, 100 + step));
    optimizer.apply(step, 0.5);
    for (int i = 0; i < 12; ++i) {
      const double g = 0.5 * parameter.grad.view({-1})[i].item<double>();
      m[i] = config.beta1 * m[i] + (1 - config.beta1) * g;
      v[i] = config.beta2 * v[i] + (1 - config.beta2) * g * g;
      const double mhat = m[i] / (1 - std::pow(config.beta1, step + 1)),
                   vhat = v[i] / (1 - std::pow(config.beta2, step + 1));
      w[i] = (1 - config.lr * config.weight_decay) * w[i] - config.lr * mhat / (std::sqrt(vhat) + config.eps);
      EXPECT_NEAR(parameter.value.view({-1})[i].item<double>(), w[i], 1e-14);
    }
  }
}

TEST(Adamw, BiasCorrectionCountsSkippedSteps) {
  const auto config = plain_adamw();
  RandomParameters set(1, kDoubles);
  auto& parameter = set.add_random("w", ParameterKind::kHead, {2, 3}, 1.0);
  Optimizer optimizer(config, 10, set, 1);
  auto w = parameter.value.clone(), m = at::zeros_like(w), v = at::zeros_like(w);
  for (const int step : {1, 2, 5}) {  // 0, 3 and 4 were skipped
    parameter.grad.copy_(random_tensor({2, 3}, 200 + static_cast<uint64_t>(step)));
    optimizer.apply(step, 1.0);
    m = config.beta1 * m + (1 - config.beta1) * parameter.grad;
    v = config.beta2 * v + (1 - config.beta2) * parameter.grad.square();
    const auto m_hat = m / (1 - std::pow(config.beta1, step + 1)), v_hat = v / (1 - std::pow(config.beta2, step + 1));
    w = (1 - config.lr * config.weight_decay) * w - config.lr * m_hat / (v_hat.sqrt() + config.eps);
    EXPECT_TRUE(at::allclose(parameter.value, w, 1e-14, 1e-14)) << "step " << step;
  }
}

TEST(Adamw, NeverDecaysGains) {
  RandomParameters set(1, kDoubles);
  auto& gain = set.add_ones("g", ParameterKind::kGain, {4});
  Optimizer optimizer(plain_adamw(), 10, set, 1);
  optimizer.apply(0, 1.0);  // zero gradient: only decay could move it
  EXPECT_TRUE(at::equal(gain.value, at::ones({4}, kDoubles)));
}

at::Tensor orthogonal(const at::Tensor& matrix) {
  auto result = at::zeros_like(matrix);
  add_orthogonal(result, matrix, 1.0, 1.0);
  return result;
}

TEST(Muon, BringsSingularValuesNearOne) {
  for (const auto& shape : {std::vector<int64_t>{24, 24}, {10, 40}, {40, 10}}) {
    const auto values = at::linalg_svdvals(orthogonal(random_tensor(shape, 3)));
    EXPECT_GT(values.min().item<double>(), 0.3);
    EXPECT_LT(values.max().item<double>(), 1.3);
  }
}

TEST(Muon, MakesNothingOfAZeroMatrix) {
  EXPECT_TRUE(at::equal(orthogonal(at::zeros({4, 6}, kDoubles)), at::zeros({4, 6}, kDoubles)));
}

// Those within a factor of fifty of the largest are lifted; float32 is as good as float64.
TEST(Muon, LiftsSmallSingularValues) {
  const auto [u, s, vh] = at::linalg_svd(random_tensor({40, 60}, 5), /*full_matrices=*/false);
  const auto matrix = (u * at::logspace(0, -1.7, 40, 10, kDoubles)).mm(vh);
  const auto exact = orthogonal(matrix);
  const auto values = at::linalg_svdvals(exact);
  EXPECT_GT(values.min().item<double>(), 0.6);
  EXPECT_LT(values.max().item<double>(), 1.3);
  const auto rounded = orthogonal(matrix.to(at::kFloat)).to(at::kDouble);
  EXPECT_LT(((rounded - exact).norm() / exact.norm()).item<double>(), 1e-3);  // 6e-8 in x x^T, magnified by the slopes
}

// Gradients of a long run are small: their squares must not vanish in float32.
TEST(Muon, IsTheSameForTinyMatrices) {
  const auto matrix = random_tensor({30, 50}, 6).to(at::kFloat);
  const auto tiny = orthogonal(matrix * 1e-5), plain = orthogonal(matrix);
  EXPECT_LT(((tiny - plain).norm() / plain.norm()).item<double>(), 1e-3);
}

TEST(Muon, KeepsAndScalesWhatItAddsTo) {
  const auto matrix = random_tensor({6, 9}, 7), before = random_tensor({6, 9}, 8);
  auto value = before.clone();
  add_orthogonal(value, matrix, 0.25, -3.0);
  EXPECT_TRUE(at::allclose(value, 0.25 * before - 3.0 * orthogonal(matrix), 1e-12, 1e-12));
}

TEST(Optimizer, UpdatesToTheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> results;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    OptimConfig config;
    config.kind = OptimizerKind::kMuon;
    RandomParameters set(1, kDoubles);
    for (int i = 0; i < 6; ++i) set.add_random("w" + std::to_string(i), ParameterKind::kMatrix, {20 + i, 30}, 1.0);
    set.add_random("head", ParameterKind::kHead, {30, 50}, 1.0);
    Optimizer optimizer(config, 10, set, 1);
    for (int step = 0; step < 3; ++step) {
      uint64_t seed = 100 * static_cast<uint64_t>(step);
      for (auto& parameter : set.all()) parameter.grad.copy_(random_tensor(parameter.grad.sizes(), ++seed));
      optimizer.apply(step, 0.5);
    }
    auto& values = results.emplace_back();
    for (const auto& parameter : set.all()) values.push_back(parameter.value);
  }
  at::set_num_threads(before);
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
}

TEST(Muon, KeepsTheSingularVectors) {
  const auto matrix = random_tensor({6, 9}, 4);
  const auto [u, s, vh] = at::linalg_svd(matrix, /*full_matrices=*/false);
  const auto rotated = u.t().mm(orthogonal(matrix)).mm(vh.t());
  const auto off_diagonal = rotated - at::diag(rotated.diagonal());
  EXPECT_LT(off_diagonal.abs().max().item<double>(), 1e-12);
}

TEST(Muon, UpdatesEachColumnBlockSeparately) {
  OptimConfig config = plain_adamw();
  config.kind = OptimizerKind::kMuon;
  RandomParameters set(1, kDoubles);
  auto& joint = set.add_random("joint", ParameterKind::kMatrix, {6, 10}, 1.0, {4, 6});
  auto& left = set.add_random("left", ParameterKind::kMatrix, {6, 4}, 1.0);
  auto& right = set.add_random("right", ParameterKind::kMatrix, {6, 6}, 1.0);
  joint.value.copy_(at::cat({left.value, right.value}, 1));
  Optimizer optimizer(config, 10, set, 1);
  for (int step = 0; step < 3; ++step) {
    joint.grad.copy_(random_tensor({6, 10}, 50 + step));
    left.grad.copy_(joint.grad.narrow(1, 0, 4));
    right.grad.copy_(joint.grad.narrow(1, 4, 6));
    optimizer.apply(step, 1.0);
  }
  EXPECT_TRUE(at::allclose(joint.value, at::cat({left.value, right.value}, 1), 1e-14, 1e-14));
}

TEST(Optimizer, GivesMuonTheMatricesAndAdamwTheRest) {
  OptimConfig config;
  config.kind = OptimizerKind::kMuon;
  RandomParameters set(1, kDoubles);
  set.add_random("w", ParameterKind::kMatrix, {3, 4}, 1.0);
  set.add_random("embedding", ParameterKind::kEmbedding, {5, 4}, 1.0);
  set.add_random("head", ParameterKind::kHead, {4, 5}, 1.0);
  set.add_ones("gain", ParameterKind::kGain, {4});
  Optimizer optimizer(config, 10, set, 1);
  std::vector<std::string> names;
  for (const auto& moment : optimizer.state()) names.push_back(moment.parameter->name + "." + moment.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"w.m", "embedding.m", "embedding.v", "head.m", "head.v", "gain.m", "gain.v"}));
}

TEST(Clipping, UsesTheGlobalNormOfAllParameters) {
  RandomParameters set(1, kDoubles);
  set.add_random("a", ParameterKind::kMatrix, {3, 4}, 1.0).grad.fill_(2.0);
  set.add_random("b", ParameterKind::kMatrix, {2, 2}, 1.0).grad.fill_(-1.0);
  Optimizer optimizer(plain_adamw(), 10, set, 1);
  EXPECT_NEAR(optimizer.squared_norm(), 12 * 4.0 + 4 * 1.0, 1e-12);
  EXPECT_EQ(clip_factor(25.0, 1.0), 0.2);
  EXPECT_EQ(clip_factor(0.25, 1.0), 1.0);
  EXPECT_EQ(clip_factor(25.0, 0.0), 1.0);
}

}  // namespace
}  // namespace thinpipe
