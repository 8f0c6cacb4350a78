// What machines compare before they train together.
#include "pipeline/seed_numbers.h"

#include <gtest/gtest.h>

#include "config/config_file.h"

namespace thinpipe {
namespace {

RunConfig with(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.d=64", "subspace.rank=8", "model.table="});
  return parse_config("", "x.toml", settings);
}

// Golden value: a build or machine with a different hash cannot take part in the runs of others.
TEST(SeedNumbers, AreTheSameOnEveryMachine) {
  EXPECT_EQ(seed_numbers_sha256(with({}), 1000), "d134be718928844898a45552452dfced4f67d0a0e979a1af16902be8f77b58d1");
  EXPECT_EQ(seed_numbers_sha256(with({"train.precision=float64"}), 1000), seed_numbers_sha256(with({}), 1000));
  EXPECT_EQ(seed_numbers_sha256(with({}), 1), seed_numbers_sha256(with({}), 1));
}

TEST(SeedNumbers, DependOnEverythingTheyAreDerivedFrom) {
  const auto usual = seed_numbers_sha256(with({}), 1000);
  for (const auto* setting : {"train.seed=2", "subspace.anchor_std=0.5", "subspace.rank=9", "model.d=128"}) {
    RunConfig other = with({});
    other = parse_config(to_toml(other), "x.toml", std::vector<std::string>{setting});
    EXPECT_NE(seed_numbers_sha256(other, 1000), usual) << setting;
  }
  EXPECT_NE(seed_numbers_sha256(with({}), 1001), usual);
}

TEST(SeedNumbers, DoNotIncludeATableFromAFile) {
  const std::string table = "model.table=" + std::string(64, 'a');
  EXPECT_EQ(seed_numbers_sha256(with({table}), 1000), seed_numbers_sha256(with({table}), 1001));
  EXPECT_EQ(seed_numbers_sha256(with({"model.mode=dense"}), 1000), "");
}

TEST(SeedNumbers, RefusalOfAnotherHashNamesBoth) {
  const auto config = with({});
  EXPECT_TRUE(check_seed_numbers(config, 1000, "").ok());
  EXPECT_TRUE(check_seed_numbers(config, 1000, seed_numbers_sha256(config, 1000)).ok());
  const auto refused = check_seed_numbers(config, 1000, std::string(64, 'b'));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(seed_numbers_sha256(config, 1000).substr(0, 12)), std::string::npos);
  EXPECT_NE(refused.error().message.find("bbbbbbbbbbbb"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace thinpipe
