// RunConfig built in code: its checks, the division into stages, the ranges' promise of no overflow, and the values of
// [link].
#include "config/run_config.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "config/keys.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

TEST(Validate, AcceptsTheDefaults) { EXPECT_NO_THROW(validate(RunConfig{})); }

TEST(Validate, NamesTheKeyOfAConfigBuiltInCode) {
  RunConfig config;
  config.train.seq_len = 0;
  EXPECT_EQ(test::user_error([&] { validate(config); }), "train.seq_len = 0: needs a whole number from 1 to 65536");
}

TEST(Validate, RefusesASeedThatTomlCannotHold) {
  RunConfig config;
  config.train.seed = std::numeric_limits<uint64_t>::max();
  EXPECT_THROW(validate(config), UserError);
}

TEST(Validate, AcceptsATokenTableFromTheCorpusAFileOrTheSeed) {
  const auto refusal = [](RunConfig config, const std::string& table) {
    config.model.table = table;
    return test::user_error([&] { validate(config); });
  };
  const std::string hash(64, '7');
  EXPECT_EQ(refusal({}, ""), "");
  EXPECT_EQ(refusal({}, hash), "");
  EXPECT_EQ(refusal({}, "corpus"), "");
  for (const std::string& wrong : {hash.substr(1), hash + "7", std::string(64, 'A'), "../" + hash.substr(3)}) {
    EXPECT_NE(refusal({}, wrong).find("needs \"corpus\", empty text, or 64 lower-case hex digits"), std::string::npos)
        << wrong;
  }
  RunConfig dense;
  dense.model.mode = ModelMode::kDense;
  for (const std::string& source : {std::string(), hash, std::string("corpus")}) EXPECT_EQ(refusal(dense, source), "");
}

TEST(BlocksPerStage, DividesEvenlyWithTheRemainderFirst) {
  RunConfig config;
  config.model.blocks = 7;
  config.pipeline.stages = 3;
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{3, 2, 2}));
}

TEST(BlocksPerStage, LeavesTheDenseTailInTheLastStage) {
  RunConfig config;
  config.model.blocks = 7;
  config.model.subspace.full_rank_tail = 3;
  config.pipeline.stages = 3;
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{2, 2, 3}));
  config.pipeline.stages = 4;
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{2, 1, 1, 3}));
  config.pipeline.stages = 5;
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{1, 1, 1, 1, 3}));
  config.pipeline.stages = 1;
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{7}));
  config.model.mode = ModelMode::kDense;
  config.pipeline.stages = 3;
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{3, 2, 2}));
}

TEST(BlocksPerStage, FollowsTheCuts) {
  RunConfig config;
  config.pipeline = {.stages = 2, .cuts = {1, 3}};
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{1, 3}));
}

TEST(BlocksPerStage, DividesEvenlyBeforeAutoCutsArePlaced) {
  RunConfig config;
  config.pipeline = {.stages = 3, .auto_cuts = true};
  EXPECT_EQ(blocks_per_stage(config), (std::vector<int64_t>{2, 2, 1}));
}

TEST(Validate, RefusesAutoCutsTogetherWithAList) {
  RunConfig config;
  config.pipeline = {.stages = 2, .cuts = {1, 3}, .auto_cuts = true};
  EXPECT_THROW(validate(config), UserError);
}

TEST(BlocksPerStage, AlwaysSumsToTheBlocksAndLeavesNoStageEmpty) {
  RunConfig config;
  for (config.model.blocks = 1; config.model.blocks <= 24; ++config.model.blocks) {
    for (config.pipeline.stages = 1; config.pipeline.stages <= config.model.blocks; ++config.pipeline.stages) {
      const auto blocks = blocks_per_stage(config);
      EXPECT_EQ(blocks.size(), static_cast<size_t>(config.pipeline.stages));
      EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), int64_t{0}), config.model.blocks);
      EXPECT_TRUE(std::is_sorted(blocks.rbegin(), blocks.rend()));
      EXPECT_GE(blocks.back(), 1);
      EXPECT_LE(blocks.front() - blocks.back(), 1);
    }
  }
}

TEST(DefaultMlpWidth, IsEightThirdsRoundedUpTo32) {
  EXPECT_EQ(default_mlp_width(256), 704);
  EXPECT_EQ(default_mlp_width(384), 1024);
  EXPECT_EQ(default_mlp_width(1), 32);
  for (int64_t d = 1; d <= 4096; ++d) {
    const int64_t width = default_mlp_width(d);
    EXPECT_EQ(width % 32, 0);
    EXPECT_GE(3 * width, 8 * d);
    EXPECT_LT(3 * (width - 32), 8 * d);
  }
}

// The largest whole number a key accepts.
int64_t largest(const std::string& name) {
  for (const Key& key : config_keys()) {
    if (key.full() != name) continue;
    int64_t low = std::get<int64_t>(key.get(RunConfig{}));
    for (int64_t step = int64_t{1} << 61; step > 0; step /= 2) {
      if (low <= std::numeric_limits<int64_t>::max() - step && key.accepts(low + step)) low += step;
    }
    return low;
  }
  return 0;
}

TEST(Bounds, NoProductOfValidValuesOverflows) {
  using Wide = long double;  // 64 bits of mantissa: enough to compare magnitudes
  const Wide limit = std::numeric_limits<int64_t>::max();
  const Wide d = largest("model.d"), blocks = largest("model.blocks"), heads = largest("model.heads");
  const Wide mlp = largest("model.mlp_width"), vocab = largest("data.vocab");
  const Wide steps = largest("train.steps"), sequence = largest("train.seq_len");
  const Wide micro = largest("train.microbatch"), count = largest("train.microbatches");
  constexpr Wide kBytes = 8;
  EXPECT_EQ(d, 65536);
  EXPECT_LT(steps * count * micro * sequence, limit);                               // tokens of a run
  EXPECT_LT(micro * sequence * vocab * kBytes, limit);                              // logits
  EXPECT_LT(micro * heads * sequence * sequence * kBytes, limit);                   // attention scores
  EXPECT_LT(micro * sequence * mlp * kBytes, limit);                                // activations
  EXPECT_LT((blocks * (4 * d * d + 3 * d * mlp) + 2 * vocab * d) * kBytes, limit);  // parameters
}

// [link]: one value for all cuts or one per cut, for both directions or for each.
using std::chrono::milliseconds;

RunConfig with(const LinkConfig& link, int64_t stages = 3) {
  RunConfig config;
  config.pipeline.stages = stages;
  config.link = link;
  return config;
}

TEST(LinkSettings, OneValueAppliesToAllCutsAndDirections) {
  const auto cuts = link_settings(with({"80mbit", "25ms", "2ms"}, 4));
  ASSERT_EQ(cuts.size(), 3u);
  const LinkShape expected{80'000'000, milliseconds(25), milliseconds(2)};
  for (const auto& cut : cuts) {
    EXPECT_EQ(cut.forward, expected);
    EXPECT_EQ(cut.backward, expected);
  }
}

TEST(LinkSettings, EachCutAndDirectionMayHaveItsOwnValue) {
  const auto cuts = link_settings(with({"80mbit/10mbit, unlimited", "0ms", "1ms/2ms"}));
  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].forward, (LinkShape{80'000'000, milliseconds(0), milliseconds(1)}));
  EXPECT_EQ(cuts[0].backward, (LinkShape{10'000'000, milliseconds(0), milliseconds(2)}));
  EXPECT_EQ(cuts[1].forward.rate_bits_per_s, 0u);
  EXPECT_EQ(link_settings(with({"unlimited", "0ms", "0ms"}))[0].forward, LinkShape{});
}

TEST(LinkSettings, RunWithOneStageHasNone) { EXPECT_TRUE(link_settings(with({}, 1)).empty()); }

TEST(LinkSettings, RefusalNamesKeyValueAndWhatWouldBeRight) {
  const auto said = [](const LinkConfig& link, int64_t stages = 3) {
    return test::user_error([&] { link_settings(with(link, stages)); });
  };
  EXPECT_EQ(said({"80mbit, 1mbit, 2mbit", "0ms", "0ms"}),
            "link.rate = \"80mbit, 1mbit, 2mbit\": has 3 values, needs one for all cuts or one for each of the 2");
  EXPECT_EQ(said({"1mbit/2mbit/3mbit", "0ms", "0ms"}),
            "link.rate = \"1mbit/2mbit/3mbit\": needs one value, or forward/backward");
  EXPECT_EQ(said({"fast", "0ms", "0ms"}).substr(0, 20), "link.rate = \"fast\": ");
  EXPECT_EQ(said({"80mbit", "25", "0ms"}).substr(0, 19), "link.delay = \"25\": ");
  EXPECT_EQ(said({"80mbit", "0ms", ","}, 2).substr(0, 20), "link.jitter = \",\": h");
  EXPECT_EQ(said({"nonsense", "0ms", "0ms"}, 1).substr(0, 12), "link.rate = ");
}

}  // namespace
}  // namespace thinpipe
