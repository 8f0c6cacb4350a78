// What a pack promises to training: the error bound, unbiased and repeatable stochastic rounding, and the treatment of
// zeros, infinities and NaN. The bytes are tested in pack_bytes_test.cc.
#include "boundary/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/rng.h"

namespace thinpipe {
namespace {

constexpr Pack kAllPacks[] = {Pack::kFp64, Pack::kFp32, Pack::kBf16, Pack::kFp16,
                              Pack::kInt8, Pack::kInt4, Pack::kInt2};
constexpr Pack kScaledPacks[] = {Pack::kFp16, Pack::kInt8, Pack::kInt4, Pack::kInt2};
constexpr Pack kRoundingPacks[] = {Pack::kBf16, Pack::kFp16, Pack::kInt8, Pack::kInt4, Pack::kInt2};
constexpr Rounding kRoundings[] = {Rounding::kNearest, Rounding::kStochastic};
constexpr double kFloatMax = std::numeric_limits<float>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
struct Matrix {
  int64_t rows, cols;
  std::vector<T> values;
};

template <class T>
std::vector<std::byte> packed(Pack pack_as, const Matrix<T>& in, Rounding rounding, PackRandom random = {1, 2}) {
  std::vector<std::byte> bytes(packed_bytes(pack_as, in.rows, in.cols));
  pack<T>(pack_as, in.values, in.rows, in.cols, rounding, random, bytes);
  return bytes;
}

template <class T>
std::vector<T> round_trip(Pack pack_as, const Matrix<T>& in, Rounding rounding, PackRandom random = {1, 2}) {
  std::vector<T> out(in.values.size(), T{12345});
  unpack<T>(pack_as, packed(pack_as, in, rounding, random), in.rows, in.cols, out).take();
  return out;
}

template <class T>
Matrix<T> made(int64_t rows, int64_t cols, auto value) {
  Matrix<T> matrix{rows, cols, {}};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) matrix.values.push_back(static_cast<T>(value(row, col)));
  }
  return matrix;
}

// Random, structured and extreme matrices; every value is within float's range.
template <class T>
std::vector<Matrix<T>> matrices() {
  const CounterRng rng(11, "matrices");
  const auto noise = [&](int64_t row, int64_t col) {
    return rng.unit_variance(static_cast<uint64_t>(row * 4096 + col));
  };
  std::vector<Matrix<T>> all;
  for (const double scale : {1.0, 1e-9, 1e-30, 1e-40, 3e-45, 1e38, 1.9e38}) {
    all.push_back(made<T>(13, 36, [&](auto row, auto col) { return scale * noise(row, col); }));
  }
  for (const auto& [rows, cols] : {std::pair{0, 4}, {1, 4}, {1, 4096}, {3, 1500}, {700, 12}}) {
    all.push_back(made<T>(rows, cols, noise));
  }
  all.push_back(made<T>(8, 8, [](auto, auto) { return 0.0; }));
  all.push_back(made<T>(8, 8, [](auto, auto) { return -0.37; }));
  all.push_back(made<T>(8, 8, [](auto row, auto col) { return (row + col) % 2 == 0 ? kFloatMax : -kFloatMax; }));
  all.push_back(made<T>(8, 8, [](auto, auto col) { return col == 3 ? 0x1p-149 : 0.0; }));
  // One row per decade below the largest, until the row scale is denormal and then the smallest possible.
  all.push_back(made<T>(15, 64, [&](auto row, auto col) { return std::pow(10.0, -row) * noise(row, col); }));
  all.push_back(made<T>(64, 64, [](auto row, auto col) { return row == col ? 1.0 : 0.0; }));
  all.push_back(
      made<T>(4, 256, [](auto row, auto col) { return std::ldexp(1.0 + 0.01 * double(row), -int(col) / 2); }));
  return all;
}

// docs/wire.md, "How far off". r: the value of the row's outermost codes; scale: the tensor's.
double bound(Pack pack_as, Rounding rounding, double x, double r, double scale, bool as_float) {
  const double steps = rounding == Rounding::kNearest ? 0.5 : 1.0;
  const double unit = std::min(scale, r * (1 + 0x1p-10) + 0x1p-39 * scale);
  double result = 0;
  switch (pack_as) {
    case Pack::kFp64:
      return 0;
    case Pack::kFp32:
      return as_float ? 0 : 0x1p-24 * std::abs(x) + 0x1p-150;
    case Pack::kBf16:
      return steps * (0x1p-7 * std::abs(x) + 0x1p-133);
    case Pack::kFp16:
      result = steps * (0x1p-10 * std::abs(x) + 0x1p-39 * scale);
      break;
    case Pack::kInt8:
      result = steps * unit / 127;
      break;
    case Pack::kInt4:
      result = steps * unit / 7;
      break;
    case Pack::kInt2:
      result = std::max(steps * unit * 2 / 3, std::abs(x) - r);
      break;
  }
  // The rounding of the arithmetic; then of the result, to a float that may be denormal.
  result += 0x1p-48 * scale;
  return as_float ? result + 0x1p-24 * std::abs(x) + 0x1p-149 : result;
}

template <class T>
void expect_within_bounds(Pack pack_as, Rounding rounding, const Matrix<T>& in) {
  const auto out = round_trip(pack_as, in, rounding);
  const auto magnitude = [](T a, T b) { return std::abs(a) < std::abs(b); };
  const double largest = in.values.empty() ? 0 : std::abs(*std::ranges::max_element(in.values, magnitude));
  const double scale = std::max(largest * (1 + 0x1p-23), largest + 0x1p-149);
  for (size_t row = 0; row < static_cast<size_t>(in.rows); ++row) {
    const auto begin = in.values.begin() + static_cast<ptrdiff_t>(row) * in.cols;
    double r = std::abs(*std::max_element(begin, begin + in.cols, magnitude));
    if (pack_as == Pack::kInt2 && rounding == Rounding::kNearest) {
      double squares = 0;
      for (auto x = begin; x != begin + in.cols; ++x) squares += double(*x) * double(*x);
      r = std::min(r, 1.5 * std::sqrt(squares / double(in.cols)));
    }
    for (size_t i = row * size_t(in.cols); i < (row + 1) * size_t(in.cols); ++i) {
      const double x = in.values[i];
      ASSERT_LE(std::abs(out[i] - x), bound(pack_as, rounding, x, r, scale, sizeof(T) == 4))
          << "pack " << int(pack_as) << " rounding " << int(rounding) << " of " << in.rows << " x " << in.cols
          << ", row " << row << ": " << x << " came back as " << out[i] << " where the row's codes reach " << r;
    }
  }
}

TEST(Pack, RoundTripStaysWithinTheErrorBounds) {
  for (const Pack pack_as : kAllPacks) {
    for (const Rounding rounding : kRoundings) {
      for (const auto& matrix : matrices<float>()) expect_within_bounds(pack_as, rounding, matrix);
      for (const auto& matrix : matrices<double>()) expect_within_bounds(pack_as, rounding, matrix);
    }
  }
}

TEST(Pack, GivesTheSameBytesForFloatAndDouble) {
  for (const auto& matrix : matrices<float>()) {
    const Matrix<double> wide{matrix.rows, matrix.cols, {matrix.values.begin(), matrix.values.end()}};
    for (const Pack pack_as : kAllPacks) {
      for (const Rounding rounding : kRoundings) {
        EXPECT_EQ(packed(pack_as, matrix, rounding), packed(pack_as, wide, rounding)) << int(pack_as);
      }
    }
  }
}

TEST(Pack, NearestDoesNotDependOnTheRandomness) {
  const auto matrix = matrices<float>().front();
  for (const Pack pack_as : kAllPacks) {
    EXPECT_EQ(packed(pack_as, matrix, Rounding::kNearest, {1, 2}), packed(pack_as, matrix, Rounding::kNearest, {3, 4}));
  }
}

TEST(Pack, StochasticIsRepeatablePerStream) {
  const auto matrix = matrices<float>().front();
  for (const Pack pack_as : kRoundingPacks) {
    const auto bytes = packed(pack_as, matrix, Rounding::kStochastic, {1, 2});
    EXPECT_EQ(bytes, packed(pack_as, matrix, Rounding::kStochastic, {1, 2}));
    EXPECT_NE(bytes, packed(pack_as, matrix, Rounding::kStochastic, {1, 3}));
    EXPECT_NE(bytes, packed(pack_as, matrix, Rounding::kStochastic, {2, 2}));
  }
}

// Column 0 holds each row's maximum, 1; every other number is x.
template <class T>
void expect_unbiased(Pack pack_as, double x) {
  const auto matrix = made<T>(400, 100, [&](auto, auto col) { return col == 0 ? 1.0 : x; });
  const auto out = round_trip(pack_as, matrix, Rounding::kStochastic, {77, stream_of("unbiased")});
  const double exact = static_cast<T>(x);
  std::set<T> levels;
  double sum = 0, count = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % 100 == 0) continue;
    levels.insert(out[i]);
    sum += out[i] - exact;
    count += 1;
  }
  if (levels.size() == 1) {
    EXPECT_EQ(*levels.begin(), static_cast<T>(x)) << "pack " << int(pack_as);
    return;
  }
  ASSERT_EQ(levels.size(), 2u) << "pack " << int(pack_as) << " of " << x;
  const double low = *levels.begin(), high = *levels.rbegin();
  ASSERT_TRUE(low <= exact && exact <= high) << low << " " << exact << " " << high;
  const double share = (exact - low) / (high - low);
  // Five standard errors of the mean of `count` draws between two levels: 1 in 1.7 million would fail by chance.
  EXPECT_NEAR(sum / count, 0.0, 5 * (high - low) * std::sqrt(share * (1 - share) / count))
      << "pack " << int(pack_as) << " of " << x << " between " << low << " and " << high;
}

TEST(Pack, StochasticRoundingIsUnbiased) {
  for (const Pack pack_as : kRoundingPacks) {
    for (const double x :
         {0.3, -0.3, 0.51234, -0.9, 0.9999, 0.0101, -0.70001, 0x1p-12 * 1.0007, 0x1.008p-3, 0x1.0018p-3}) {
      expect_unbiased<float>(pack_as, x);
      expect_unbiased<double>(pack_as, x);
    }
  }
}

TEST(Pack, StochasticRoundingKeepsRepresentableNumbers) {
  for (const auto& [pack_as, x] : {std::pair{Pack::kBf16, 0.6640625},
                                   {Pack::kFp16, 0.333251953125},
                                   {Pack::kInt8, 0.0},
                                   {Pack::kInt4, 0.0},
                                   {Pack::kInt8, 1.0},
                                   {Pack::kInt4, -1.0},
                                   {Pack::kInt2, -1.0}}) {
    const auto matrix = made<double>(64, 8, [x = x](auto, auto col) { return col == 0 ? 1.0 : x; });
    for (const double value : round_trip(pack_as, matrix, Rounding::kStochastic)) {
      EXPECT_TRUE(std::abs(value - x) < 1e-15 || std::abs(value - 1) < 1e-15) << int(pack_as) << " " << value;
    }
  }
}

TEST(Pack, ZeroIsExactEvenBesideLargeRows) {
  const auto matrix = made<float>(300, 8, [](auto row, auto col) { return row % 3 == 1 ? 5.0 + double(col) : 0.0; });
  for (const Pack pack_as : kAllPacks) {
    for (const Rounding rounding : kRoundings) {
      const auto out = round_trip(pack_as, matrix, rounding);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i] == 0, matrix.values[i] == 0) << int(pack_as) << " at " << i;
        ASSERT_FALSE(std::signbit(out[i])) << int(pack_as) << " at " << i;
      }
    }
  }
}

TEST(Pack, LargestNumberOfARowNeverClips) {
  const CounterRng rng(5, "peaks");
  const auto matrix = made<float>(2000, 4, [&](auto row, auto col) {
    const double peak = 1e-3 + rng.uniform(static_cast<uint64_t>(row));
    return col == 2 ? -peak : col == 1 ? peak : 0.0;
  });
  for (const Pack pack_as : {Pack::kInt8, Pack::kInt4, Pack::kInt2}) {  // int2: these rows have no outliers
    for (const Rounding rounding : kRoundings) {
      const auto out = round_trip(pack_as, matrix, rounding);
      for (size_t i = 1; i < out.size(); i += 4) {
        // The top level is at most 2^-10 above the row's largest; only stochastic rounding may leave it.
        ASSERT_LE(std::abs(out[i]), matrix.values[i] * (1 + 0x1p-9));
        if (rounding == Rounding::kStochastic) continue;
        ASSERT_GE(out[i], matrix.values[i]) << i;
        ASSERT_EQ(out[i], -out[i + 1]);
      }
    }
  }
}

// An unbiased int2 must reach the largest number; rounding to nearest may clip, which gives a smaller error.
TEST(Pack, Int2ClipsOutliersOnlyWhenRoundingToNearest) {
  const auto matrix = made<float>(4, 16, [](auto, auto col) { return col == 5 ? -8.0 : 1.0; });
  const double level = std::sqrt((64.0 + 15.0) / 16.0) / 2;  // half of the row's root mean square
  const auto nearest = round_trip(Pack::kInt2, matrix, Rounding::kNearest);
  const auto stochastic = round_trip(Pack::kInt2, matrix, Rounding::kStochastic);
  for (size_t i = 0; i < nearest.size(); ++i) {
    EXPECT_NEAR(nearest[i], i % 16 == 5 ? -3 * level : level, level * 0x1p-9);  // the row scale is rounded up
  }
  for (size_t i = 5; i < stochastic.size(); i += 16) EXPECT_NEAR(stochastic[i], -8, 8 * 0x1p-9);
}

TEST(Pack, Int2OfNormalRowsHasAMeanSquareErrorBelow012) {
  const CounterRng rng(31, "normal");
  const auto normal = [&](uint64_t i) {  // Box-Muller; 1 - u keeps the logarithm finite
    return std::sqrt(-2 * std::log(1 - rng.uniform(2 * i))) * std::cos(2 * M_PI * rng.uniform(2 * i + 1));
  };
  for (const int64_t cols : {16, 64, 512}) {
    const auto matrix =
        made<float>(65536 / cols, cols, [&](auto row, auto col) { return normal(uint64_t(row * cols + col)); });
    const auto out = round_trip(Pack::kInt2, matrix, Rounding::kNearest);
    double squares = 0;
    for (size_t i = 0; i < out.size(); ++i) squares += std::pow(double(out[i]) - double(matrix.values[i]), 2);
    // 0.1188 is the least that four equidistant levels can reach; narrow rows, whose tails are lighter, do better.
    EXPECT_LT(squares / double(out.size()), 0.12) << cols << " columns";
  }
}

TEST(Pack, NonFiniteNumberMakesAScaledTensorNan) {
  for (const double bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    const auto matrix = made<float>(3, 8, [&](auto row, auto col) { return row == 2 && col == 7 ? bad : 0.5; });
    for (const Pack pack_as : kScaledPacks) {
      for (const float value : round_trip(pack_as, matrix, Rounding::kStochastic)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

template <class T>
void expect_plain_packs_carry_special_values() {
  const Matrix<T> matrix{1, 4, {T(kInfinity), T(-kInfinity), T(kNan), T(0.5)}};
  for (const Pack pack_as : {Pack::kFp64, Pack::kFp32, Pack::kBf16}) {
    for (const Rounding rounding : kRoundings) {
      const auto out = round_trip(pack_as, matrix, rounding);
      EXPECT_EQ(out[0], T(kInfinity));
      EXPECT_EQ(out[1], T(-kInfinity));
      EXPECT_TRUE(std::isnan(out[2]));
      EXPECT_EQ(out[3], T(0.5));
    }
  }
}

TEST(Pack, PlainPacksCarryInfinityAndNanAsThemselves) {
  expect_plain_packs_carry_special_values<float>();
  expect_plain_packs_carry_special_values<double>();
}

TEST(Pack, DoublesBeyondFloatSaturateAndStayFinite) {
  const Matrix<double> matrix{1, 4, {1e300, -1e300, 1e38, 0.0}};
  for (const Pack pack_as : kAllPacks) {
    if (pack_as == Pack::kFp64) continue;
    const auto out = round_trip(pack_as, matrix, Rounding::kNearest);
    EXPECT_NEAR(out[0] / kFloatMax, 1.0, 0x1p-8) << int(pack_as);
    EXPECT_EQ(out[1], -out[0]) << int(pack_as);
    EXPECT_NEAR(out[2], 1e38, kFloatMax / 3) << int(pack_as);
    for (const float value :
         round_trip(pack_as, Matrix<float>{1, 4, {1e38f, -1e38f, float(kFloatMax), 0}}, Rounding::kStochastic)) {
      EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Pack, DoublesBelowFloatBecomeZero) {
  const auto matrix = made<double>(2, 4, [](auto, auto col) { return 1e-300 * double(col); });
  for (const Pack pack_as : kScaledPacks) {
    for (const double value : round_trip(pack_as, matrix, Rounding::kNearest)) EXPECT_LE(std::abs(value), 0x1p-149);
  }
}

}  // namespace
}  // namespace thinpipe
