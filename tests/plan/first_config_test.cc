// What `thinpipe init` chooses from the answers and the speed of a machine.
#include "plan/first_config.h"

#include <gtest/gtest.h>

#include <chrono>

#include "config/config_file.h"
#include "config/model_spec.h"
#include "plan/memory_plan.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

constexpr StageSpeed kSpeed{.block_s = 0.06, .ends_s = 0.15};
constexpr uint64_t kGiB = uint64_t{1} << 30;

FirstAnswers answers(int64_t machines, Duration time, uint64_t text_bytes = 1 << 30) {
  return {.corpus = "my \"texts\"",
          .text_bytes = text_bytes,
          .vocab = 4096,
          .machines = machines,
          .line_bits_per_s = 10'000'000,
          .time = time,
          .purpose = Purpose::kExport};
}

TEST(FirstConfig, Text_ReadsBackAsTheConfig) {
  for (const int64_t machines : {1, 2, 3, 7, 40}) {
    for (const auto purpose : {Purpose::kExport, Purpose::kLoss}) {
      auto given = answers(machines, std::chrono::hours(4));
      given.purpose = purpose;
      const auto first = first_config(given, kSpeed, 64 * kGiB);
      const auto text = to_text(first, {"Estimate:", "a line"});
      EXPECT_EQ(parse_config(text, "my.toml"), first.config) << text;
      EXPECT_TRUE(text.starts_with("# Estimate:\n# a line\n\n[model]\n")) << text;
      EXPECT_EQ(first.config.data.corpus, given.corpus);
      EXPECT_EQ(first.config.pipeline.stages, machines);
      EXPECT_EQ(first.config.model.is_subspace(), machines > 1);
      EXPECT_EQ(first.config.model.is_fast(), machines > 1 && purpose == Purpose::kLoss);
      EXPECT_GT(first.step_s, 0);
    }
  }
}

TEST(FirstConfig, MoreTime_MeansALargerModelAndAsMuchTraining) {
  double before = 0;
  for (const int hours : {1, 10, 100, 1000, 10000}) {
    const auto first = first_config(answers(2, std::chrono::hours(hours), uint64_t{1} << 40), kSpeed, 0);
    EXPECT_GT(first.parameters, before);
    before = first.parameters;
    const double all_s = first.step_s * static_cast<double>(first.config.train.steps);
    EXPECT_LE(all_s, 3600.0 * hours);
    EXPECT_GE(all_s, 0.8 * 3600.0 * hours) << "two digits of the steps stay";
    EXPECT_FALSE(first.text_is_the_limit);
  }
}

TEST(FirstConfig, ShortText_LimitsModelAndSteps) {
  const auto first = first_config(answers(1, std::chrono::hours(100), 4 << 20), kSpeed, 0);
  EXPECT_TRUE(first.text_is_the_limit);
  const auto& train = first.config.train;
  const auto tokens = static_cast<double>(train.steps * train.microbatches * train.microbatch * train.seq_len);
  EXPECT_LE(tokens, 20.0 * (4 << 20) / 4);
  EXPECT_LE(first.parameters, 4.0 * (4 << 20) / 4);
}

TEST(FirstConfig, EveryStage_FitsTheMemory) {
  const uint64_t memory = 700 << 20;
  const auto first = first_config(answers(2, std::chrono::hours(10000), uint64_t{1} << 40), kSpeed, memory);
  for (int64_t stage = 0; stage < 2; ++stage) {
    EXPECT_LE(memory_plan(first.config, 4096, stage).total(), memory);
  }
  const auto said = test::user_error([] { (void)first_config(answers(2, std::chrono::hours(1)), kSpeed, 1 << 20); });
  EXPECT_NE(said.find("memory: even the smallest model needs more than"), std::string::npos) << said;
}

TEST(FirstConfig, SlowLine_DecidesTheTimeOfAStep) {
  const auto config = first_config(answers(3, std::chrono::hours(10)), kSpeed, 0).config;
  const double free = step_seconds(config, kSpeed, 0);
  const auto sent = static_cast<double>(step_traffic(config, config.data.vocab, 1).sent);
  EXPECT_EQ(step_seconds(config, kSpeed, 8), sent);
  EXPECT_EQ(step_seconds(config, kSpeed, uint64_t{1} << 50), free);
  // Twice as slow a machine takes twice the time.
  EXPECT_NEAR(step_seconds(config, {2 * kSpeed.block_s, 2 * kSpeed.ends_s}, 0), 2 * free, 1e-9 * free);
}

}  // namespace
}  // namespace thinpipe
