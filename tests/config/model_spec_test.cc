// The description of a model against counts derived by hand from docs/model.md.
#include "config/model_spec.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 300;

RunConfig small(ModelMode mode) {
  RunConfig config;
  config.model.mode = mode;
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

int64_t parameter_count(const RunConfig& config, int64_t vocab, int64_t stage) {
  int64_t count = 0;
  for (const auto& spec : model_spec(config.model, vocab, blocks_of_stage(config, stage))) count += spec.elements();
  return count;
}

// The parameters of one block, as docs/model.md lists them: norms, wqkv, wp1 or a1, wgu, wp2 or a2.
constexpr int64_t kReads = 12 + 12 * (12 + 4 + 4) + 12 + 12 * 14;
constexpr int64_t kDenseBlock = kReads + 12 * 12 + 7 * 12;
constexpr int64_t kSubspaceBlock = kReads + 12 * 4 + 7 * 4;

TEST(ParameterCount, DenseModelMatchesTheModelPage) {
  const auto config = small(ModelMode::kDense);
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 12 + kDenseBlock);
  EXPECT_EQ(parameter_count(config, kVocab, 1), 3 * kDenseBlock + 12 + 12 * kVocab);
}

TEST(ParameterCount, SubspaceModelHasNarrowOutputsExceptInTheTail) {
  const auto config = small(ModelMode::kSubspace);
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock);
  EXPECT_EQ(parameter_count(config, kVocab, 1), 2 * kSubspaceBlock + kDenseBlock + 12 + 12 * kVocab);
}

TEST(ParameterCount, CountsTheGainsOfQkNorm) {
  auto config = small(ModelMode::kSubspace);
  config.model.qk_norm = true;
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock + 2 * 4);
  EXPECT_EQ(parameter_count(config, kVocab, 1), 2 * kSubspaceBlock + kDenseBlock + 3 * 2 * 4 + 12 + 12 * kVocab);
}

TEST(ParameterCount, HasOneTablePerAnchorGroupOutsideTheTail) {
  auto config = small(ModelMode::kSubspace);
  config.model.subspace.anchors = Anchors::kStage;
  config.model.subspace.full_rank_tail = 2;
  config.model.subspace.anchor_groups = {1, 1, 1, 1};
  const int64_t table = kVocab * 12;
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock + table);
  // Groups of blocks 1 and 2. The stream is lifted at block 2, so block 3 needs no anchor.
  EXPECT_EQ(parameter_count(config, kVocab, 1), kSubspaceBlock + 2 * kDenseBlock + 2 * table + 12 + 12 * kVocab);
  config.model.subspace.previous = Previous::kTable;
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock + 2 * table);
  config.model.subspace.anchor_rank = 3;
  EXPECT_EQ(parameter_count(config, kVocab, 0), kVocab * 4 + kSubspaceBlock + 2 * (kVocab * 3 + 3 * 12));
}

TEST(ModelSpec, StagesTogetherGiveTheWholeModelForAnyCuts) {
  for (const auto mode : {ModelMode::kDense, ModelMode::kSubspace}) {
    auto config = small(mode);
    const auto whole = model_spec(config.model, kVocab, whole_model(config.model));
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{4}, {1, 3}, {1, 1, 2}}) {
      config.pipeline = {.stages = static_cast<int64_t>(cuts.size()), .cuts = cuts};
      std::vector<std::string> names, expected;
      for (int64_t stage = 0; stage < config.pipeline.stages; ++stage) {
        for (const auto& spec : model_spec(config.model, kVocab, blocks_of_stage(config, stage))) {
          names.push_back(spec.name);
        }
      }
      for (const auto& spec : whole) expected.push_back(spec.name);
      EXPECT_EQ(names, expected);
    }
  }
}

TEST(ModelUnits, AreTheFilesOfACheckpointInOrder) {
  auto config = small(ModelMode::kDense);
  using Units = std::vector<std::string>;
  EXPECT_EQ(model_units(config.model, whole_model(config.model)),
            (Units{"embedding", "block-000", "block-001", "block-002", "block-003", "head"}));
  config = small(ModelMode::kSubspace);
  config.model.subspace.anchors = Anchors::kStage;
  config.model.subspace.anchor_groups = {1, 3};
  EXPECT_EQ(model_units(config.model, blocks_of_stage(config, 0)),
            (Units{"embedding", "anchors-0", "block-000", "shared"}));
  EXPECT_EQ(model_units(config.model, blocks_of_stage(config, 1)),
            (Units{"anchors-1", "block-001", "block-002", "block-003", "head", "shared"}));
}

TEST(ModelSpec, SplitsInputMatricesByColumnsAndOutputMatricesByRows) {
  const auto config = small(ModelMode::kSubspace);
  std::map<std::string, Split> splits;
  for (const auto& spec : model_spec(config.model, kVocab, whole_model(config.model))) splits[spec.name] = spec.split;
  EXPECT_EQ(splits.at("blocks.0.wqkv"), Split::kColumns);
  EXPECT_EQ(splits.at("blocks.0.a1"), Split::kRows);
  EXPECT_EQ(splits.at("blocks.3.wgu"), Split::kColumns);
  EXPECT_EQ(splits.at("blocks.3.wp2"), Split::kRows);
  EXPECT_EQ(splits.at("blocks.0.attn_norm"), Split::kNone);
}

}  // namespace
}  // namespace thinpipe
