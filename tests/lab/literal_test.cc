// The pipeline in coordinates equals the paper's literal form (METHOD 2, 3): row-wise AdamW, decay, clipping, Grassmann
// updates and skipped steps, compared parameter by parameter in d dimensions. The pipeline is the one that trains, with
// stages on threads and packed messages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "lab/exactness.h"
#include "lab/literal_optimizer.h"
#include "lab/pattern_batches.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 53;

RunConfig literal_config(int64_t steps, int64_t update_every) {
  auto config = exactness_cases().front().config;
  config.model.subspace.update_every = update_every;
  config.model.subspace.update_rate = 0.3;
  config.optim.kind = OptimizerKind::kRowAdamw;
  config.optim.lr = 0.003;
  config.optim.weight_decay = 0.1;
  config.optim.clip = 5;  // some of the steps are clipped, some are not
  config.optim.schedule = LrSchedule::kConstant;
  config.optim.warmup = 5;
  config.train.steps = steps;
  return config;
}

// The pipeline and the literal form, from the same weights and on the same tokens.
class Pair {
 public:
  explicit Pair(const RunConfig& config)
      : config_(config), batches_(config.train, kVocab), pipeline_(config, kVocab, batches_) {
    const auto& basis = side().basis();
    const FixedTable table(config.train.seed, kVocab, config.model.d, config.model.subspace.anchor_std,
                           basis.u.options());
    literal_.emplace(config, materialise(config.model, parameters(), basis.u), table.whole(), basis,
                     LiteralRule::kRowAdamw);
  }

  void step(int64_t number) {
    const auto ours = pipeline_.step(number);
    const double expected = literal_->step(number, batches_.step(number));
    EXPECT_TRUE(ours.apply);
    EXPECT_NEAR(ours.loss, expected, 1e-10 * expected) << "step " << number;
    ++(std::sqrt(ours.squared_norm) > config_.optim.clip ? clipped_ : unclipped_);
  }

  // A step in which the last stage's head is not finite. The literal form ignores it, but its number is used up.
  void skipped_step(int64_t number) {
    auto& last = pipeline_.worker(static_cast<size_t>(config_.pipeline.stages - 1)).stage();
    auto& head = last.parameters().all().back();
    ASSERT_EQ(head.name, "head");
    const auto healthy = head.value.clone();
    head.value.fill_(NAN);
    EXPECT_FALSE(pipeline_.step(number).apply);
    head.value.copy_(healthy);
  }

  void expect_same(int64_t basis_version) {
    EXPECT_GT(clipped_, 2);
    EXPECT_GT(unclipped_, 2);
    EXPECT_EQ(side().basis().version, basis_version);
    EXPECT_EQ(literal_->basis().version, basis_version);
    auto& last = pipeline_.worker(static_cast<size_t>(config_.pipeline.stages - 1)).stage();
    EXPECT_FALSE(last.subspace()->second_moment().defined()) << "C was collected although no update follows";
    for (int64_t i = 0; i < config_.pipeline.stages; ++i) {
      const auto& u = pipeline_.worker(static_cast<size_t>(i)).stage().subspace()->basis().u;
      EXPECT_LT((u - literal_->basis().u).norm().item<double>(), 1e-10) << "stage " << i;
    }
    const auto ours = materialise(config_.model, parameters(), side().u());
    ASSERT_EQ(ours.size(), literal_->weights().size());
    for (const auto& [name, expected] : literal_->weights()) {
      EXPECT_LT(((ours.at(name) - expected).norm() / expected.norm()).item<double>(), 1e-10) << name;
    }
  }

 private:
  SubspaceSide& side() { return *pipeline_.worker(0).stage().subspace(); }
  TensorMap parameters() {
    TensorMap all;
    for (int64_t i = 0; i < config_.pipeline.stages; ++i) {
      for (const auto& parameter : pipeline_.worker(static_cast<size_t>(i)).stage().parameters().all()) {
        all[parameter.name] = parameter.value;
      }
    }
    return all;
  }

  RunConfig config_;
  PatternBatches batches_;
  InProcessPipeline pipeline_;
  std::optional<LiteralTraining> literal_;
  int clipped_ = 0, unclipped_ = 0;
};

TEST(LiteralForm, FiftyStepsInCoordinatesEqualFiftyLiteralSteps) {
  auto config = literal_config(50, 20);
  config.pipeline.stages = 1;
  config.pipeline.cuts = {config.model.blocks};
  config.train.microbatches = 1;
  config.train.threads = 1;
  validate(config);
  Pair pair(config);
  for (int64_t step = 0; step < config.train.steps; ++step) pair.step(step);
  pair.expect_same(2);
}

class LiteralPipeline : public testing::TestWithParam<ScheduleKind> {};

TEST_P(LiteralPipeline, FourStagesUpdateAndSkipLikeTheLiteralForm) {
  auto config = literal_config(12, 4);
  config.pipeline.schedule = GetParam();
  ASSERT_EQ(config.pipeline.stages, 4);
  ASSERT_EQ(config.train.microbatches, 3);
  validate(config);
  Pair pair(config);
  for (int64_t step = 0; step < config.train.steps; ++step) {
    // One in the middle, and one where an update is due: the update is then omitted, and C is kept for the next one.
    if (step == 5 || step == 7) {
      pair.skipped_step(step);
    } else {
      pair.step(step);
    }
  }
  pair.expect_same(2);
}

INSTANTIATE_TEST_SUITE_P(Schedules, LiteralPipeline, testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1f1b),
                         [](const auto& schedule) {
                           return schedule.param == ScheduleKind::kGpipe ? "Gpipe" : "OneForwardOneBackward";
                         });

}  // namespace
}  // namespace thinpipe
