// The same dense model, weights and tokens that tests/pipeline/parity/generate.py trained in PyTorch.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/stage.h"
#include "optim/optimizer.h"
#include "pipeline/tensor_file.h"

namespace thinpipe {
namespace {

struct Reference {
  SafetensorsFile file;
  ModelConfig model;
  OptimConfig optim;
  int64_t vocab;
};

Reference load(const std::string& name) {
  auto file = SafetensorsFile::open("tests/pipeline/parity/dense_" + name + ".safetensors").take();
  const auto json = nlohmann::json::parse(file.metadata().at("config"));
  ModelConfig model;
  model.mode = ModelMode::kDense;
  model.d = json["d"];
  model.blocks = json["blocks"];
  model.heads = json["heads"];
  model.kv_heads = json["kv_heads"];
  model.mlp_width = json["mlp"];
  model.positions = json["rope"] ? Positions::kRope : Positions::kSinusoidal;
  model.position_scale = 1;  // the script adds the sinusoids unscaled
  model.qk_norm = json["qk_norm"];
  OptimConfig optim;
  optim.kind = OptimizerKind::kAdamw;
  optim.lr = json["lr"];
  optim.beta1 = json["beta1"];
  optim.beta2 = json["beta2"];
  optim.eps = json["eps"];
  optim.weight_decay = json["weight_decay"];
  optim.clip = json["clip"];
  optim.schedule = LrSchedule::kConstant;
  optim.warmup = 0;
  const int64_t vocab = json["vocab"];
  return {std::move(file), model, optim, vocab};
}

std::vector<double> train(const Reference& reference, Precision precision) {
  Stage stage(reference.model, reference.vocab, {0, reference.model.blocks, reference.model.blocks}, precision, 1,
              at::Device("cpu"));
  size_t loaded = 0;
  for (auto& parameter : stage.parameters().all()) {
    const auto value = tensor_from(reference.file, "w." + parameter.name).take();
    EXPECT_EQ(value.sizes(), parameter.value.sizes()) << parameter.name;
    parameter.value.copy_(value);
    ++loaded;
  }
  EXPECT_EQ(loaded + 3, reference.file.tensors().size());  // every weight of theirs, and tokens, losses, losses_f32
  const auto tokens = tensor_from(reference.file, "tokens").take();  // (steps, B, T+1)
  Optimizer optimizer(reference.optim, tokens.size(0), stage.parameters(), /*seed=*/1);
  std::vector<double> losses;
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    const TokenBatch batch{tokens[step]};
    const auto count = static_cast<double>(batch.sequences() * batch.length());
    stage.parameters().zero_grad();
    auto pass = stage.forward(batch, {}, 1.0 / count);
    losses.push_back(pass.loss_sum / count);
    stage.backward(std::move(pass), {});
    optimizer.apply(step, clip_factor(optimizer.squared_norm(), reference.optim.clip));
  }
  return losses;
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, TenStepsInFloat64MatchPytorch) {
  const auto reference = load(GetParam());
  const auto expected = tensor_from(reference.file, "losses").take();
  const auto losses = train(reference, Precision::kFloat64);
  ASSERT_EQ(expected.numel(), 10);
  for (int64_t step = 0; step < 10; ++step) {
    const double wanted = expected[step].item<double>();
    EXPECT_NEAR(losses[static_cast<size_t>(step)], wanted, 1e-9 * wanted) << "step " << step;
  }
}

TEST_P(Parity, TenStepsInFloat32MatchPytorch) {
  const auto reference = load(GetParam());
  const auto expected = tensor_from(reference.file, "losses_f32").take();
  const auto losses = train(reference, Precision::kFloat32);
  for (int64_t step = 0; step < 10; ++step) {
    const double wanted = expected[step].item<double>();
    EXPECT_NEAR(losses[static_cast<size_t>(step)], wanted, 1e-4 * wanted) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, Parity, testing::Values("rope_gqa", "sinusoidal_qknorm", "rope_qknorm_mqa"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace thinpipe
