// Stages: every cut of a model starts from the same weights and computes the same as the whole. The whole model is
// checked with finite differences here and against PyTorch in tests/pipeline/parity_test.cc.
#include "model/stage.h"

#include <ATen/ATen.h>

#include <map>
#include <memory>

#include "base/result.h"
#include "model/numeric.h"
#include "model/products.h"
#include "model/small_models.h"

namespace thinpipe {
namespace {

ModelConfig dense_model() {
  auto config = small_model(ModelMode::kDense);
  config.init_std = 0.2;
  return config;
}

constexpr int64_t kVocab = 19;

TokenBatch tokens_of(int64_t sequences, int64_t length) {
  return {at::arange(sequences * (length + 1), at::kLong).mul(7).remainder(kVocab).view({sequences, length + 1})};
}

std::vector<std::unique_ptr<Stage>> cut_into(const ModelConfig& config, const std::vector<int64_t>& cuts,
                                             Precision precision = Precision::kFloat64) {
  std::vector<std::unique_ptr<Stage>> stages;
  int64_t first = 0;
  for (const int64_t count : cuts) {
    stages.push_back(std::make_unique<Stage>(config, kVocab, BlockRange{first, first + count, config.blocks}, precision,
                                             /*seed=*/7, at::Device("cpu")));
    first += count;
  }
  return stages;
}

struct Outcome {
  double loss_sum;
  std::map<std::string, at::Tensor> gradients;
};

Outcome forward_backward(std::vector<std::unique_ptr<Stage>>& stages, const TokenBatch& batch) {
  std::vector<StagePass> passes;
  at::Tensor stream;
  for (auto& stage : stages) {
    passes.push_back(stage->forward(batch, stream, /*loss_scale=*/0.1));
    stream = passes.back().output;
  }
  Outcome outcome{passes.back().loss_sum, {}};
  at::Tensor grad;
  for (size_t i = stages.size(); i-- > 0;) grad = stages[i]->backward(std::move(passes[i]), grad);
  for (auto& stage : stages) {
    for (const auto& parameter : stage->parameters().all()) outcome.gradients[parameter.name] = parameter.grad.clone();
  }
  return outcome;
}

TEST(Stage, EveryCutComputesTheSameLossAndGradients) {
  const auto batch = tokens_of(2, 6);
  auto whole = cut_into(dense_model(), {3});
  const auto expected = forward_backward(whole, batch);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{1, 2}, {2, 1}, {1, 1, 1}}) {
    auto stages = cut_into(dense_model(), cuts);
    const auto outcome = forward_backward(stages, batch);
    EXPECT_EQ(outcome.loss_sum, expected.loss_sum);  // the same operations in the same order
    ASSERT_EQ(outcome.gradients.size(), expected.gradients.size());
    for (const auto& [name, gradient] : expected.gradients) {
      EXPECT_TRUE(at::equal(outcome.gradients.at(name), gradient)) << name;
    }
  }
}

TEST(Stage, GradientsOfTheWholeModelMatchFiniteDifferences) {
  for (const bool rope : {true, false}) {
    auto config = dense_model();
    config.blocks = 1;
    config.d = 8;
    config.heads = 2;
    config.kv_heads = 1;
    config.mlp_width = 6;
    config.qk_norm = true;
    config.positions = rope ? Positions::kRope : Positions::kSinusoidal;
    auto stages = cut_into(config, {1});
    const auto batch = tokens_of(2, 4);
    const auto outcome = forward_backward(stages, batch);
    for (auto& parameter : stages[0]->parameters().all()) {
      const auto loss = [&] { return 0.1 * stages[0]->evaluate(batch, {}).loss_sum; };
      EXPECT_LT(relative_error(outcome.gradients.at(parameter.name), finite_difference(parameter.value, loss)), 1e-6)
          << parameter.name;
    }
  }
}

TEST(Stage, GradientsOfMicrobatchesAddUp) {
  const auto first = tokens_of(1, 5), second = TokenBatch{tokens_of(1, 5).tokens.add(3).remainder(kVocab)};
  auto together = cut_into(dense_model(), {3});
  const auto both = forward_backward(together, TokenBatch{at::cat({first.tokens, second.tokens})});
  auto apart = cut_into(dense_model(), {3});
  forward_backward(apart, first);
  const auto sum = forward_backward(apart, second);
  for (const auto& [name, gradient] : both.gradients) {
    EXPECT_LT(relative_error(sum.gradients.at(name), gradient), 1e-13) << name;
  }
}

TEST(Stage, EvaluationGivesTheTrainingLossAndChangesNothing) {
  auto stages = cut_into(dense_model(), {3});
  const auto batch = tokens_of(2, 6);
  const double trained = stages[0]->forward(batch, {}, 1.0).loss_sum;
  stages[0]->parameters().zero_grad();
  EXPECT_NEAR(stages[0]->evaluate(batch, {}).loss_sum, trained, 1e-12 * trained);
  for (const auto& parameter : stages[0]->parameters().all()) EXPECT_EQ(parameter.grad.abs().max().item<double>(), 0);
}

TEST(Stage, TakesSequencesOfOneToken) {
  auto stages = cut_into(dense_model(), {3});
  const auto batch = tokens_of(3, 1);
  const double together = forward_backward(stages, batch).loss_sum;
  double apart = 0;
  for (int64_t i = 0; i < 3; ++i) apart += stages[0]->evaluate(TokenBatch{batch.tokens.narrow(0, i, 1)}, {}).loss_sum;
  EXPECT_NEAR(together, apart, 1e-12 * apart);
}

TEST(Products, Bf16RoundsOperandsAndMultipliesInFloat32) {
  const auto a = at::linspace(-1.0, 2.0, 5 * 7, at::kFloat).view({5, 7}),
             b = at::linspace(3.0, -2.0, 7 * 3, at::kFloat).view({7, 3}), c = at::ones({5, 3}, at::kFloat);
  const auto rounded = [](const at::Tensor& tensor) { return tensor.to(at::kBFloat16).to(at::kFloat); };
  const auto expected = at::mm(rounded(a), rounded(b));
  const Products products(Precision::kBf16);
  EXPECT_TRUE(at::equal(products.multiply(a, b), expected));
  EXPECT_TRUE(at::equal(products.operand(a), rounded(a)));
  EXPECT_TRUE(at::equal(products.multiply_add(c, a, b), at::addmm(c, rounded(a), rounded(b))));
  EXPECT_FALSE(at::equal(expected, at::mm(a, b)));
  EXPECT_TRUE(at::equal(Products(Precision::kFloat32).multiply(a, b), at::mm(a, b)));
  EXPECT_EQ(storage_type(Precision::kBf16), at::kFloat);  // weights, moments and activations
}

TEST(Stage, Bf16RoundsOperandsAndKeepsFloat32Weights) {
  auto exact = cut_into(dense_model(), {3}, Precision::kFloat32);
  auto rounded = cut_into(dense_model(), {3}, Precision::kBf16);
  const auto batch = tokens_of(2, 6);
  const double a = exact[0]->evaluate(batch, {}).loss_sum, b = rounded[0]->evaluate(batch, {}).loss_sum;
  EXPECT_NE(a, b);
  EXPECT_NEAR(a, b, 0.02 * a);  // bf16 keeps 8 bits: 0.4 % per operand
  for (const auto& parameter : rounded[0]->parameters().all()) EXPECT_EQ(parameter.value.scalar_type(), at::kFloat);
}

TEST(Stage, InitialWeightsAreTheSameInEveryPrecision) {
  auto wide = cut_into(dense_model(), {3}, Precision::kFloat64);
  auto narrow = cut_into(dense_model(), {3}, Precision::kFloat32);
  for (auto& parameter : wide[0]->parameters().all()) {
    EXPECT_TRUE(at::equal(parameter.value.to(at::kFloat), narrow[0]->parameters().find(parameter.name)->value));
  }
}

TEST(Stage, ADenseModelWithATokenTableStartsItsEmbeddingWithIt) {
  auto config = dense_model();
  config.table = std::string(64, 'a');
  const auto table = at::arange(kVocab * config.d, at::kFloat).view({kVocab, config.d}).sin();
  const auto stage_with = [&](BlockRange range, const at::Tensor& given) {
    return std::make_unique<Stage>(config, kVocab, range, Precision::kFloat64, 7, at::Device("cpu"), given);
  };
  const auto first = stage_with({0, 1, config.blocks}, table);
  EXPECT_TRUE(at::equal(first->parameters().at("embedding").value, table.to(at::kDouble)));
  // Only the first stage needs it.
  EXPECT_NO_THROW(stage_with({1, config.blocks, config.blocks}, {}));
  EXPECT_THROW(stage_with({0, 1, config.blocks}, {}), UserError);
}

}  // namespace
}  // namespace thinpipe
