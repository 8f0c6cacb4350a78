// The bits are part of the contract (docs/rng.md): the goldens below come from an independent implementation of that
// page, the Philox answers from the authors' test vectors.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace thinpipe {
namespace {

constexpr uint64_t kSeed = 0x0123456789abcdef;
constexpr std::string_view kName = "blocks.3.wqkv";

TEST(Philox, GivesTheAuthorsAnswers) {
  using Block = std::array<uint32_t, 4>;
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(StreamOf, IsFnv1a) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325u);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(stream_of(kName), 0x97363f05c0e13323u);
}

TEST(CounterRng, Gives32BitGoldens) {
  const CounterRng rng(kSeed, kName);
  EXPECT_EQ(rng.bits32(0), 0xdb5613ebu);
  EXPECT_EQ(rng.bits32(1), 0x0251f5d6u);
  EXPECT_EQ(rng.bits32(2), 0x2a030c16u);
  EXPECT_EQ(rng.bits32(3), 0x6a42f332u);
  EXPECT_EQ(rng.bits32(4), 0xda206be0u);
  EXPECT_EQ(rng.bits32((uint64_t{1} << 34) + 5), 0xb168700cu);
  EXPECT_EQ(rng.bits32(UINT64_MAX), 0x786cb005u);
}

TEST(CounterRng, Gives64BitGoldens) {
  const CounterRng rng(kSeed, kName);
  EXPECT_EQ(rng.bits64(0), 0x0251f5d6db5613ebu);
  EXPECT_EQ(rng.bits64(1), 0x6a42f3322a030c16u);
  EXPECT_EQ(rng.bits64(2), 0x5455f6dbda206be0u);
  EXPECT_EQ(rng.bits64((uint64_t{1} << 33) + 1), 0xffd2836d687cfcf3u);
  EXPECT_EQ(rng.bits64(UINT64_MAX), 0x044bc9491d09ea2fu);
}

TEST(CounterRng, GivesUnitVarianceGoldens) {
  const CounterRng rng(kSeed, kName);
  EXPECT_EQ(rng.unit_variance(0), 0x1.3c65e4bd5dc73p+0);
  EXPECT_EQ(rng.unit_variance(1), -0x1.b35e24937d6e6p+0);
  EXPECT_EQ(rng.unit_variance(3), -0x1.2d37984cc3042p-2);
  EXPECT_EQ(rng.unit_variance(UINT64_MAX), -0x1.a3df9ab7a3889p-4);
}

TEST(CounterRng, NameAndNumberOfAStreamAreTheSame) {
  EXPECT_EQ(CounterRng(3, "a").bits64(9), CounterRng(3, stream_of("a")).bits64(9));
}

TEST(CounterRng, SeedStreamAndIndexAllMatter) {
  const uint64_t base = CounterRng(1, uint64_t{1}).bits64(0);
  EXPECT_NE(base, CounterRng(2, uint64_t{1}).bits64(0));
  EXPECT_NE(base, CounterRng(1 | uint64_t{1} << 32, uint64_t{1}).bits64(0));
  EXPECT_NE(base, CounterRng(1, uint64_t{2}).bits64(0));
  EXPECT_NE(base, CounterRng(1, 1 | uint64_t{1} << 32).bits64(0));
  EXPECT_NE(base, CounterRng(1, uint64_t{1}).bits64(1));
}

TEST(CounterRng, FillEqualsSingleDraws) {
  const CounterRng rng(kSeed, kName);
  for (uint64_t first = 0; first < 6; ++first) {
    for (size_t count = 0; count < 11; ++count) {
      std::vector<double> filled(count);
      rng.fill_unit_variance(first, filled);
      for (size_t j = 0; j < count; ++j) EXPECT_EQ(filled[j], rng.unit_variance(first + j)) << first << " " << j;
    }
  }
}

TEST(CounterRng, FilledBitsEqualSingleDraws) {
  const CounterRng rng(kSeed, kName);
  // The last start makes the block number cross 2^32 inside a group of blocks.
  for (const uint64_t start : {uint64_t{0}, uint64_t{1} << 20, (uint64_t{1} << 34) - 8}) {
    for (uint64_t first = start; first < start + 6; ++first) {
      for (const size_t count : {0, 1, 3, 4, 5, 15, 16, 17, 31, 40, 67}) {
        std::vector<uint32_t> filled(count);
        rng.fill_bits32(first, filled);
        for (size_t j = 0; j < count; ++j) ASSERT_EQ(filled[j], rng.bits32(first + j)) << first << " " << j;
      }
    }
  }
}

TEST(CounterRng, UnitVarianceHasMeanZeroAndVarianceOne) {
  std::vector<double> values(1'000'000);
  CounterRng(42, "moments").fill_unit_variance(0, values);
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double square = 0, product = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    square += values[i] * values[i];
    product += values[i] * values[(i + 1) % values.size()];
    ASSERT_LT(std::abs(values[i]), std::sqrt(3.0));
  }
  // The standard errors are 1/sqrt(n) = 0.001 and sqrt(0.8/n) = 0.0009; the bounds are five of them.
  EXPECT_NEAR(mean, 0.0, 0.005);
  EXPECT_NEAR(square / n, 1.0, 0.005);
  EXPECT_NEAR(product / n, 0.0, 0.005);  // neighbours do not know of each other
}

TEST(CounterRng, UniformStaysBelowOneAndFillsTheRange) {
  const CounterRng rng(5, "uniform");
  std::vector<int> bins(16);
  constexpr int kDraws = 64'000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = rng.uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    ++bins[static_cast<size_t>(value * 16)];
  }
  for (const int count : bins) EXPECT_NEAR(count, kDraws / 16, 5 * std::sqrt(kDraws / 16));
}

}  // namespace
}  // namespace thinpipe
