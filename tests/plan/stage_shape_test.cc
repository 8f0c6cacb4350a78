// Shapes and sizes against counts written down by hand from docs/model.md, real checkpoints and the packs themselves.
#include "plan/stage_shape.h"

#include <gtest/gtest.h>

#include "boundary/sizes.h"
#include "config/config_file.h"
#include "config/enum_names.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 300;

RunConfig small(ModelMode mode) {
  RunConfig config;
  config.model.mode = mode;
  config.boundary.kind = config.model.is_subspace() ? BoundaryKind::kSubspace : BoundaryKind::kDense;
  config.model.d = 12;
  config.model.blocks = 4;
  config.model.heads = 3;
  config.model.kv_heads = 1;
  config.model.mlp_width = 7;
  config.model.subspace.rank = 4;
  config.pipeline.stages = 2;
  config.pipeline.cuts = {1, 3};
  return config;
}

// Of one block, as docs/model.md lists it: norms, wqkv, wp1 or a1, wgu, wp2 or a2.
constexpr int64_t kReads = 12 + 12 * (12 + 4 + 4) + 12 + 12 * 14;
constexpr int64_t kDenseBlock = kReads + 12 * 12 + 7 * 12;
constexpr int64_t kSubspaceBlock = kReads + 12 * 4 + 7 * 4;

TEST(ParameterCount, OfADenseModelIsWhatTheModelPageLists) {
  const auto config = small(ModelMode::kDense);
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 12 + kDenseBlock);
  EXPECT_EQ(parameter_count(config, kVocab, 1), 3 * kDenseBlock + 12 + 12 * kVocab);
}

TEST(ParameterCount, OfASubspaceModelHasNarrowOutputsButInTheTail) {
  const auto config = small(ModelMode::kSubspace);
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock);
  EXPECT_EQ(parameter_count(config, kVocab, 1), 2 * kSubspaceBlock + kDenseBlock + 12 + 12 * kVocab);
}

TEST(ParameterCount, CountsTheGainsOfQkNormAndSplitNorms) {
  auto config = small(ModelMode::kSubspace);
  config.model.qk_norm = true;
  config.model.subspace.norm = NormForm::kSplit;
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock + 2 * 4 + 2 * 12);
  EXPECT_EQ(parameter_count(config, kVocab, 1),
            2 * (kSubspaceBlock + 2 * 12) + kDenseBlock + 3 * 2 * 4 + 12 + 12 * kVocab);
}

TEST(ParameterCount, HasATableForEveryAnchorGroupThatIsNotWhollyInTheTail) {
  auto config = small(ModelMode::kSubspace);
  config.model.subspace.anchors = Anchors::kStage;
  config.model.subspace.full_rank_tail = 2;
  config.model.subspace.anchor_groups = {1, 1, 1, 1};
  const int64_t table = kVocab * 12;
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock + table);
  // Groups of blocks 1 and 2; block 2 is where the stream is lifted. Block 3 needs no anchor.
  EXPECT_EQ(parameter_count(config, kVocab, 1), kSubspaceBlock + 2 * kDenseBlock + 2 * table + 12 + 12 * kVocab);
}

TEST(OptimizerElements, FollowTheRule) {
  const ParameterShape matrix{TensorRole::kMatrix, 10, 6, 2, true}, a{TensorRole::kCoordinates, 10, 4, 4, true};
  const ParameterShape e{TensorRole::kCoordinates, 300, 4, 4, false}, gain{TensorRole::kGain, 1, 12, 12};
  EXPECT_EQ(optimizer_elements(OptimizerKind::kMuon, matrix), 60);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kMuon, a), 40);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kMuon, e), 2 * 1200);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kMuon, gain), 24);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kAdamw, matrix), 120);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kRowAdamw, a), 50);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kRowAdamw, e), 1500);
  EXPECT_EQ(optimizer_elements(OptimizerKind::kRowAdamw, matrix), 120);
}

TEST(StateBytes, AreWeightsMomentsBasisAndSecondMoment) {
  auto config = small(ModelMode::kSubspace);
  config.optim.kind = OptimizerKind::kAdamw;
  const auto count = [&](int64_t stage) { return static_cast<uint64_t>(parameter_count(config, kVocab, stage)); };
  EXPECT_EQ(state_bytes(config, kVocab, 0), 3 * 4 * count(0) + 12 * 4 * 8);
  EXPECT_EQ(state_bytes(config, kVocab, 1), 3 * 4 * count(1) + 12 * 4 * 8 + 12 * 12 * 4);
  config.train.precision = Precision::kFloat64;
  EXPECT_EQ(state_bytes(config, kVocab, 0), 3 * 8 * count(0) + 12 * 4 * 8);
}

// Bytes of the tensors in checkpoints that the program wrote; in a subspace model one counter of 8 bytes is among them.
TEST(StateBytes, AreThoseOfRealCheckpoints) {
  struct Case {
    std::vector<std::string> settings;
    uint64_t first, last;
  };
  const std::vector<Case> cases{
      {{"model.mode=dense"}, 4000768, 4001536},
      {{}, 1453064 - 8, 3927816 - 8},
      {{"model.kv_heads=2", "model.qk_norm=true", "subspace.anchors=stage", "subspace.norm=split",
        "optim.kind=row_adamw"},
       4555528 - 8,
       7339016 - 8},
  };
  for (const auto& [settings, first, last] : cases) {
    std::vector<std::string> all{"pipeline.stages=2", "model.d=64", "model.heads=4"};
    all.insert(all.end(), settings.begin(), settings.end());
    const auto config = parse_config("", "x.toml", all);
    EXPECT_EQ(state_bytes(config, 4096, 0), first);
    EXPECT_EQ(state_bytes(config, 4096, 1), last);
  }
}

TEST(StepTraffic, HasOneDirectionPerNeighbour) {
  auto config = small(ModelMode::kDense);
  config.pipeline = {.stages = 3, .cuts = {1, 1, 2}};
  const uint64_t forward = 4 * (boundary_sizes(config, kVocab).forward + 80);
  const uint64_t backward = 4 * (boundary_sizes(config, kVocab).backward + 80);
  EXPECT_EQ(step_traffic(config, kVocab, 0).sent, forward);
  EXPECT_EQ(step_traffic(config, kVocab, 0).received, backward);
  EXPECT_EQ(step_traffic(config, kVocab, 1).sent, forward + backward);
  EXPECT_EQ(step_traffic(config, kVocab, 1).received, forward + backward);
  EXPECT_EQ(step_traffic(config, kVocab, 2).sent, backward);
  EXPECT_EQ(step_traffic(config, kVocab, 2).received, forward);
}

}  // namespace
}  // namespace thinpipe
