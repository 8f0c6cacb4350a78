// Training does not depend on the cut, the schedule and the number of microbatches in flight.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

namespace thinpipe {
namespace {

using test::largest_relative_difference;
using test::losses_of;
using test::tiny_config;
using test::TinyCorpus;

const std::vector<std::vector<int64_t>> kCuts = {{2, 2}, {1, 3}, {3, 1}, {1, 1, 2}, {2, 1, 1}, {1, 2, 1}, {1, 1, 1, 1}};

// Returns the losses of the uncut run.
std::vector<double> expect_same_losses(RunConfig config, const std::vector<std::vector<int64_t>>& all_cuts,
                                       double tolerance) {
  const TinyCorpus corpus;
  const auto whole = losses_of(config, corpus);
  for (const auto& cuts : all_cuts) {
    config.pipeline.cuts = cuts;
    config.pipeline.stages = static_cast<int64_t>(cuts.size());
    EXPECT_LT(largest_relative_difference(losses_of(config, corpus), whole), tolerance) << testing::PrintToString(cuts);
  }
  return whole;
}

class Cuts : public testing::TestWithParam<ModelMode> {};

TEST_P(Cuts, EveryAllowedCutGivesTheSameLossesInFloat64) {
  const auto whole = expect_same_losses(tiny_config(GetParam()), kCuts, 1e-12);
  EXPECT_LT(whole[19], whole[0] - 0.2);  // it does learn
}

TEST_P(Cuts, EveryAllowedCutGivesTheSameLossesInFloat32) {
  auto config = tiny_config(GetParam());
  config.train.precision = Precision::kFloat32;
  config.boundary.pack = Pack::kFp32;
  expect_same_losses(config, kCuts, 1e-5);
}

TEST_P(Cuts, GpipeAndOneForwardOneBackwardAgreeBitForBit) {
  const TinyCorpus corpus;
  for (const auto pack : {Pack::kFp32, Pack::kInt4}) {  // int4: stochastic rounding must not depend on the schedule
    auto config = tiny_config(GetParam());
    config.train.precision = Precision::kFloat32;
    config.train.microbatches = 5;
    config.boundary.pack = pack;
    config.pipeline.stages = 4;
    config.pipeline.schedule = ScheduleKind::kGpipe;
    const auto gpipe = losses_of(config, corpus);
    config.pipeline.schedule = ScheduleKind::k1f1b;
    EXPECT_EQ(losses_of(config, corpus), gpipe);
  }
}

TEST_P(Cuts, RecomputedBlocksGiveTheSameBits) {
  const TinyCorpus corpus;
  for (const int64_t stages : {1, 3}) {
    auto config = tiny_config(GetParam());
    config.model.qk_norm = true;
    config.pipeline.stages = stages;
    const auto kept = losses_of(config, corpus);
    config.train.recompute = Recompute::kBlock;
    EXPECT_EQ(losses_of(config, corpus), kept) << stages;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Cuts, testing::Values(ModelMode::kDense, ModelMode::kSubspace),
                         [](const auto& mode) { return mode.param == ModelMode::kDense ? "dense" : "subspace"; });

TEST(Pipeline, TrainsWithEveryOptimizerAcrossAChangeOfBasis) {
  const TinyCorpus corpus;
  for (const auto kind : {OptimizerKind::kAdamw, OptimizerKind::kRowAdamw, OptimizerKind::kMuon}) {
    auto config = tiny_config(ModelMode::kSubspace);
    config.optim.kind = kind;
    config.pipeline.stages = 3;
    const auto losses = losses_of(config, corpus);
    EXPECT_LT(losses[19], losses[0] - 0.2);
  }
}

TEST(Pipeline, TrainableAnchorsTrainAndAreCutAtGroups) {
  auto config = tiny_config(ModelMode::kSubspace);
  config.model.subspace.anchors = Anchors::kStage;
  config.model.subspace.previous = Previous::kTable;
  config.model.subspace.anchor_groups = {1, 1, 2};
  expect_same_losses(config, {{1, 1, 2}, {2, 2}, {1, 3}}, 1e-12);
  config.model.subspace.anchor_rank = 4;
  expect_same_losses(config, {{1, 1, 2}, {2, 2}, {1, 3}}, 1e-12);
}

TEST(Pipeline, ReportsTheBytesThatCrossedEachCut) {
  const TinyCorpus corpus;
  auto config = tiny_config(ModelMode::kSubspace);
  config.model.subspace.update_every = 0;
  config.boundary.pack = Pack::kBf16;
  config.pipeline.stages = 2;
  CorpusBatches batches(corpus.prepared(), config.train);
  InProcessPipeline pipeline(config, test::kTinyVocab, batches);
  const auto step = pipeline.step(0);
  // 3 microbatches of 2 sequences: 12 tokens of k = 8 coordinates, 13 ids of 2 bytes and a length of 4.
  EXPECT_EQ(step.stages[0].forward_bytes(), 3u * 2 * (12 * 8 * 2 + 13 * 2 + 4));
  EXPECT_EQ(step.stages[1].backward_bytes(), 3u * 2 * (12 * 8 * 2));
}

TEST(Pipeline, SkipsANonFiniteStepWithoutChanges) {
  const TinyCorpus corpus;
  auto config = tiny_config(ModelMode::kSubspace);
  config.optim.lr = 1e9;  // the first update throws the weights far away
  config.optim.clip = 0;
  config.train.precision = Precision::kFloat32;
  config.pipeline.stages = 2;
  CorpusBatches batches(corpus.prepared(), config.train);
  InProcessPipeline pipeline(config, test::kTinyVocab, batches);
  bool skipped = false;
  for (int64_t step = 0; step < 12; ++step) {
    const auto result = pipeline.step(step);
    if (skipped) {
      EXPECT_FALSE(result.apply);  // nothing changed, so it cannot recover either
    }
    skipped = skipped || !result.apply;
  }
  EXPECT_TRUE(skipped);
}

TEST(Pipeline, AllStagesChangeTheBasisTogetherAndReportIt) {
  const TinyCorpus corpus;
  auto config = tiny_config(ModelMode::kSubspace);
  config.pipeline.stages = 3;
  CorpusBatches batches(corpus.prepared(), config.train);
  InProcessPipeline pipeline(config, test::kTinyVocab, batches);
  for (int64_t number = 0; number < 15; ++number) {
    const auto step = pipeline.step(number);
    const bool moved = (number + 1) % 7 == 0;
    EXPECT_EQ(step.stages.back().has_basis(), moved);
    for (const auto& stage : step.stages) EXPECT_EQ(!stage.basis_hash().empty(), moved);
    if (!moved) continue;
    const auto& basis = step.stages.back().basis();
    EXPECT_EQ(basis.version(), (number + 1) / 7);
    EXPECT_GT(basis.angles_rad(0), 0);
    EXPECT_GT(basis.energy_inside(), 0);
    EXPECT_LT(basis.energy_inside(), 1);
    EXPECT_NEAR(basis.smallest_gram(), 1, 1e-12);
    EXPECT_NEAR(basis.largest_gram(), 1, 1e-12);
  }
}

}  // namespace
}  // namespace thinpipe
