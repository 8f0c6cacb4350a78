// The coordinate form is the paper's literal form (METHOD 2, 3): 50 steps with row-wise AdamW, decay, clipping and two
// Grassmann change-overs, compared parameter by parameter in d dimensions.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lab/exactness.h"
#include "lab/literal_optimizer.h"
#include "model/stage.h"
#include "optim/optimizer.h"
#include "subspace/grassmann.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 53;

TEST(LiteralForm, FiftyStepsInCoordinatesAreFiftyStepsInFull) {
  auto config = exactness_cases().front().config;
  config.model.subspace.update_every = 20;
  config.model.subspace.update_rate = 0.3;
  config.optim.kind = OptimizerKind::kRowAdamw;
  config.optim.lr = 0.003;
  config.optim.weight_decay = 0.1;
  config.optim.clip = 0.5;
  config.train.steps = 50;
  Stage stage(config.model, kVocab, {0, config.model.blocks, config.model.blocks}, Precision::kFloat64, 1,
              at::Device("cpu"));
  Optimizer optimizer(config.optim, config.train.steps, stage.parameters());
  auto& side = *stage.subspace();
  const auto parameters = [&] {
    TensorMap all;
    for (const auto& parameter : stage.parameters().all()) all[parameter.name] = parameter.value;
    return all;
  };
  LiteralTraining literal(
      config, materialise(config.model, parameters(), side.u()),
      FixedTable(1, kVocab, config.model.d, config.model.subspace.anchor_std, side.u().options()).whole(), side.basis(),
      LiteralRule::kRowAdamw);
  double clipped = 0;
  for (int64_t step = 0; step < config.train.steps; ++step) {
    const auto tokens = at::arange(16, at::kLong).mul(3 + step % 7).add(step).remainder(kVocab).view({2, 8});
    const double expected = literal.step(step, {tokens});
    stage.parameters().zero_grad();
    auto pass = stage.forward({tokens}, {}, 1.0 / 14);
    EXPECT_NEAR(pass.loss_sum / 14, expected, 1e-10 * expected) << "step " << step;
    stage.backward(std::move(pass), {});
    const double factor = clip_factor(optimizer.squared_norm(), config.optim.clip);
    clipped += factor < 1 ? 1 : 0;
    optimizer.apply(step, factor);
    side.commit_tap();
    if ((step + 1) % 20 == 0) {
      optimizer.change_over(
          stage.change_over(grassmann_step(side.basis(), side.second_moment(), config.model.subspace.update_rate)));
    }
  }
  EXPECT_GT(clipped, 10);
  EXPECT_EQ(side.basis().version, 2);
  EXPECT_EQ(literal.basis().version, 2);
  const auto ours = materialise(config.model, parameters(), side.u());
  ASSERT_EQ(ours.size(), literal.weights().size());
  for (const auto& [name, expected] : literal.weights()) {
    EXPECT_LT(((ours.at(name) - expected).norm() / expected.norm()).item<double>(), 1e-10) << name;
  }
}

}  // namespace
}  // namespace thinpipe
