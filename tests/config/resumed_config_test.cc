// What may be changed when a run is resumed, and what may not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "config/config_file.h"
#include "config/keys.h"
#include "support/scratch.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

using Texts = std::vector<std::string>;
using Cuts = std::vector<int64_t>;

class ResumedConfig : public ::testing::Test {
 protected:
  // As in a run's folder: every key is given.
  void run_with(const Texts& settings) {
    before_ = parse_config("[model]\nblocks = 6\n", "x.toml", settings);
    std::ofstream(folder_ / "config.toml") << to_toml(before_);
  }
  RunConfig changed(const Texts& overrides) const { return load_resumed_config(folder_ / "config.toml", overrides); }
  std::string refusal(const Texts& overrides) const {
    return test::user_error([&] { (void)changed(overrides); });
  }

  const test::ScratchFolder folder_;
  RunConfig before_;
};

TEST_F(ResumedConfig, WithoutOverridesEqualsTheRunsConfig) {
  run_with({"pipeline.cuts=[1,2,3]", "train.steps=7"});
  EXPECT_EQ(changed({}), before_);
}

TEST_F(ResumedConfig, NewNumberOfStagesGivesEvenCuts) {
  run_with({"pipeline.cuts=[1,1,2,2]"});
  const auto two = changed({"pipeline.stages=2"});
  EXPECT_EQ(two.pipeline.stages, 2);
  EXPECT_EQ(blocks_per_stage(two), (Cuts{3, 3}));
  EXPECT_EQ(changed({"pipeline.stages=4"}), before_) << "the same number of stages keeps the cuts";
  auto expected = before_;
  expected.pipeline = two.pipeline;
  EXPECT_EQ(two, expected) << "nothing else changes";
}

TEST_F(ResumedConfig, NewCutsSetTheNumberOfStages) {
  run_with({"pipeline.stages=4"});
  const auto config = changed({"pipeline.cuts=[4,2]"});
  EXPECT_EQ(config.pipeline.stages, 2);
  EXPECT_EQ(config.pipeline.cuts, (Cuts{4, 2}));
  EXPECT_EQ(changed({"pipeline.cuts=[]"}), before_);
  EXPECT_EQ(changed({"pipeline.cuts=[2,2,2]", "pipeline.stages=3"}).pipeline.cuts, (Cuts{2, 2, 2}));
  EXPECT_NE(refusal({"pipeline.cuts=[4,2]", "pipeline.stages=3"}).find("has 2 entries, needs one per stage"),
            std::string::npos);
}

TEST_F(ResumedConfig, AutoCutsStayAutoUntilCutsAreGiven) {
  run_with({"pipeline.cuts=auto", "pipeline.stages=3"});
  EXPECT_TRUE(changed({"pipeline.stages=2"}).pipeline.auto_cuts);
  EXPECT_EQ(changed({"pipeline.stages=2"}).pipeline.stages, 2);
  EXPECT_EQ(changed({"pipeline.cuts=[4,2]"}).pipeline.stages, 2);
  EXPECT_FALSE(changed({"pipeline.cuts=[4,2]"}).pipeline.auto_cuts);
  run_with({"pipeline.cuts=[1,2,3]"});
  EXPECT_TRUE(changed({"pipeline.cuts=auto"}).pipeline.auto_cuts);
  EXPECT_EQ(changed({"pipeline.cuts=auto"}).pipeline.stages, 3);
}

TEST_F(ResumedConfig, AcceptsKeysThatDoNotChangeTheResult) {
  run_with({});
  const auto config = changed({"pipeline.schedule=gpipe", "link.rate=20mbit", "link.delay=3ms", "checkpoint.every=3",
                               "cluster.lease_s=4", "train.threads=2", "train.recompute=block", "train.device=cuda"});
  EXPECT_EQ(config.pipeline.schedule, ScheduleKind::kGpipe);
  EXPECT_EQ(config.link.rate, "20mbit");
  EXPECT_EQ(config.checkpoint.every, 3);
  EXPECT_EQ(config.cluster.lease_s, 4);
  EXPECT_EQ(config.train.threads, 2);
  EXPECT_EQ(config.train.device, "cuda");
}

TEST_F(ResumedConfig, RefusesEveryOtherKeyByItsName) {
  run_with({});
  int refused = 0;
  for (const Key& key : config_keys()) {
    const bool stays = key.section != "pipeline" && key.section != "link" && key.section != "checkpoint" &&
                       key.section != "cluster" && key.full() != "train.threads" && key.full() != "train.recompute" &&
                       key.full() != "train.device" && key.full() != "train.steps" &&
                       key.full() != "train.sample_every";
    // Even if the value would not change.
    const auto text = fmt::format("{}={}", key.full(), toml_text(key.get(before_)));
    const auto said = refusal({text});
    if (!stays) {
      EXPECT_EQ(said, "") << text;
      continue;
    }
    ++refused;
    EXPECT_EQ(said.find("--set " + key.full() + ": changes what the run computes"), 0u) << said;
    EXPECT_NE(said.find("start a new run"), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
  }
  EXPECT_GT(refused, 40);
  EXPECT_EQ(refusal({"boundary.pack=fp32"}).find("--set boundary.pack: "), 0u);
}

TEST_F(ResumedConfig, RefusesCutsThatDoNotFitTheModel) {
  run_with({"subspace.anchors=stage", "pipeline.cuts=[2,2,2]"});
  EXPECT_EQ(changed({"pipeline.cuts=[2,4]"}).model, before_.model) << "the anchor groups stay";
  EXPECT_NE(refusal({"pipeline.cuts=[3,3]"}).find("would split a group"), std::string::npos);
  EXPECT_NE(refusal({"pipeline.stages=7"}).find("more stages than blocks"), std::string::npos);
  run_with({"subspace.full_rank_tail=3", "pipeline.cuts=[3,3]"});
  EXPECT_NE(refusal({"pipeline.cuts=[4,2]"}).find("cut after block 3 or earlier"), std::string::npos);
  EXPECT_EQ(blocks_per_stage(changed({"pipeline.stages=3"})), (std::vector<int64_t>{2, 1, 3}));
  run_with({"link.rate=80mbit, 20mbit", "pipeline.stages=3"});
  EXPECT_NE(refusal({"pipeline.stages=2"}).find("link.rate"), std::string::npos);
  EXPECT_EQ(refusal({"pipeline.stages=2", "link.rate=80mbit"}), "");
}

TEST_F(ResumedConfig, UnknownKeyGetsASuggestion) {
  run_with({});
  EXPECT_NE(refusal({"pipeline.stage=2"}).find("did you mean pipeline.stages?"), std::string::npos);
  EXPECT_NE(refusal({"stages"}).find("needs section.key=value"), std::string::npos);
}

}  // namespace
}  // namespace thinpipe
