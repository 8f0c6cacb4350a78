// 16-bit floats against the compiler's own, all of them.
#include "models/number_bytes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "support/draw.h"

namespace thinpipe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NumberBytes, ReadsEveryHalfAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(half));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(from_f16(half)));
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(from_f16(half)), std::bit_cast<uint32_t>(expected)) << bits;
    ASSERT_EQ(to_f16(expected), half);
  }
}

TEST(NumberBytes, RoundsToHalvesAsTheCompilerDoes) {
  const CounterRng rng(1, "floats");
  for (uint64_t i = 0; i < 1'000'000; ++i) {
    // Of every exponent that matters, and every float between two halves now and then.
    const uint32_t exponent = 127 - 28 + static_cast<uint32_t>(test::below(rng, 48, 2 * i));
    const uint32_t low = i % 3 == 0 ? 0x1000 : rng.bits32(2 * i + 1) & 0x1fff;
    const uint32_t mantissa = (rng.bits32(2 * i + 1) >> 8 & 0x7fe000) | low;
    const auto value = std::bit_cast<float>((rng.bits32(2 * i + 1) & 0x80000000) | exponent << 23 | mantissa);
    ASSERT_EQ(to_f16(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
  }
  EXPECT_EQ(to_f16(kInfinity), 0x7c00);
  EXPECT_EQ(to_f16(-65520.0F), 0xfc00);
  EXPECT_EQ(to_f16(65519.9F), 0x7bff);
  EXPECT_TRUE(std::isnan(from_f16(to_f16(NAN))));
}

TEST(NumberBytes, RoundsToBf16ToTheNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto brain = static_cast<uint16_t>(bits);
    if (!std::isnan(from_bf16(brain))) {
      ASSERT_EQ(to_bf16(from_bf16(brain)), brain);
    }
  }
  const auto rounded = [](uint32_t bits) { return to_bf16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // a tie goes to the even one below
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // or above
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);
  EXPECT_TRUE(std::isnan(from_bf16(rounded(0x7f800001))));
}

TEST(NumberBytes, RefusesWhatTheTypeCannotHold) {
  const auto refusal = [](std::vector<float> values, Dtype dtype) {
    return stored_values(values, dtype).error().message;
  };
  EXPECT_EQ(refusal({1, 70000}, Dtype::kF16), "value 1 is 70000, which F16 (at most 65504) cannot hold");
  EXPECT_EQ(refusal({-kInfinity}, Dtype::kF32), "value 0 is -inf, which F32 cannot hold");
  EXPECT_EQ(refusal({NAN}, Dtype::kBf16), "value 0 is nan, which BF16 cannot hold");
  EXPECT_EQ(refusal({3.4e38F}, Dtype::kBf16), "value 0 is 3.4e+38, which BF16 cannot hold");
  EXPECT_TRUE(stored_values(std::vector<float>{65504, 1e-9F}, Dtype::kF16).ok());
  EXPECT_TRUE(stored_values(std::vector<float>{3.4e38F}, Dtype::kF32).ok());
}

TEST(NumberBytes, LoadsWhatWasStoredAndRefusesWhatIsNotFinite) {
  const std::vector<float> values{0, -1.5F, 0.25F, 1024};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    const auto bytes = stored_values(values, dtype).take();
    EXPECT_EQ(loaded_values(std::as_bytes(std::span(bytes)), dtype).take(), values);
  }
  const std::vector<double> wide{0, 1.5, -3};
  EXPECT_EQ(loaded_values(std::as_bytes(std::span(wide)), Dtype::kF64).take(), (std::vector<float>{0, 1.5, -3}));
  const std::vector<double> wider{0, 1e300};
  EXPECT_EQ(loaded_values(std::as_bytes(std::span(wider)), Dtype::kF64).error().message,
            "value 1 is not a finite float");
  const std::vector<uint16_t> half{0x7c00};
  EXPECT_EQ(loaded_values(std::as_bytes(std::span(half)), Dtype::kF16).error().message,
            "value 0 is not a finite float");
}

}  // namespace
}  // namespace thinpipe
