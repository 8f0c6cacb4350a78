// Which token comes next: what each option leaves to choose from, and that the draw follows the probabilities.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/generator.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 in another order of ids.
const std::vector<float> kLogits{std::log(0.125f), std::log(0.5f), std::log(0.0625f), std::log(0.25f),
                                 std::log(0.0625f)};
// Four standard deviations of a share p over 20000 draws are 4 sqrt(p (1 - p) / 20000), at most this.
constexpr int kDraws = 20000;
constexpr double kNoise = 0.0142;

std::vector<double> frequencies(PickOptions options) {
  TokenPicker picker(options);
  std::vector<double> shares(kLogits.size());
  for (int i = 0; i < kDraws; ++i) shares[static_cast<size_t>(picker.pick(kLogits).value())] += 1.0 / kDraws;
  return shares;
}

TEST(TokenPicker, DrawsByProbability) {
  const auto seen = frequencies({.temperature = 1, .top_k = 0, .top_p = 1, .seed = 4});
  const std::vector<double> expected{0.125, 0.5, 0.0625, 0.25, 0.0625};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(seen[i], expected[i], kNoise) << i;
}

TEST(TokenPicker, ALowTemperatureSharpensAndAHighOneFlattens) {
  // p^2 and p^(1/2), made to sum to one: 0.25 / 0.3359 and 0.7071 / 2.0607.
  EXPECT_NEAR(frequencies({.temperature = 0.5, .top_k = 0, .top_p = 1})[1], 0.7442, kNoise);
  EXPECT_NEAR(frequencies({.temperature = 2, .top_k = 0, .top_p = 1})[1], 0.3431, kNoise);
}

TEST(TokenPicker, TemperatureZeroTakesTheLikeliestAndTheFirstOfEquals) {
  TokenPicker picker({.temperature = 0});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(picker.pick(kLogits).value(), 1);
  EXPECT_EQ(picker.pick(std::vector<float>{1, 3, 3, 2}).value(), 1);
}

TEST(TokenPicker, TopKLeavesTheSoManyLikeliest) {
  const auto seen = frequencies({.temperature = 1, .top_k = 2, .top_p = 1});
  EXPECT_EQ(seen[0] + seen[2] + seen[4], 0);
  EXPECT_NEAR(seen[1], 2.0 / 3, kNoise);
}

TEST(TokenPicker, TopPLeavesTheFewestThatHoldTheShare) {
  const auto two = frequencies({.temperature = 1, .top_k = 0, .top_p = 0.74});
  EXPECT_EQ(two[0] + two[2] + two[4], 0);
  EXPECT_GT(two[3], 0);
  const auto three = frequencies({.temperature = 1, .top_k = 0, .top_p = 0.76});
  EXPECT_GT(three[0], 0);
  EXPECT_EQ(three[2] + three[4], 0);
  EXPECT_NEAR(frequencies({.temperature = 1, .top_k = 0, .top_p = 1e-9})[1], 1, 1e-9);
}

TEST(TokenPicker, TheSameSeedGivesTheSameTokens) {
  const auto tokens = [](uint64_t seed) {
    TokenPicker picker({.temperature = 1, .top_k = 0, .top_p = 1, .seed = seed});
    std::vector<int32_t> picked;
    for (int i = 0; i < 40; ++i) picked.push_back(picker.pick(kLogits).value());
    return picked;
  };
  EXPECT_EQ(tokens(7), tokens(7));
  EXPECT_NE(tokens(7), tokens(8));
}

TEST(TokenPicker, LogitsThatAreNoNumbersAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    TokenPicker picker({.temperature = 0});
    EXPECT_FALSE(picker.pick(std::vector<float>{0, bad, 1}));
  }
  TokenPicker picker({});
  EXPECT_EQ(picker.pick(std::vector<float>{-std::numeric_limits<float>::infinity(), 0}).value(), 1);
}

TEST(TokenPicker, OptionsOutOfRangeAreNamed) {
  const auto refusal = [](PickOptions options) { return test::user_error([&] { TokenPicker picker(options); }); };
  EXPECT_EQ(refusal({.temperature = -1}), "--temperature -1: needs a number from 0 to 100");
  EXPECT_NE(refusal({.temperature = std::nan("")}), "");
  EXPECT_EQ(refusal({.top_k = -2}), "--top-k -2: needs 0 (all) or more");
  EXPECT_EQ(refusal({.top_p = 0}), "--top-p 0: needs a number above 0, at most 1");
  EXPECT_NE(refusal({.top_p = 1.5}), "");
}

}  // namespace
}  // namespace thinpipe
