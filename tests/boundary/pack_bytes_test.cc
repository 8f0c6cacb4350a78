// Checks the bytes of a pack against docs/wire.md: golden values from an independent implementation of that page, a
// naive twin of the encoder, every 16-bit float, sizes, and decoding of hostile bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "boundary/pack.h"

namespace thinpipe {
namespace {

constexpr Pack kAllPacks[] = {Pack::kFp64, Pack::kFp32, Pack::kBf16, Pack::kFp16,
                              Pack::kInt8, Pack::kInt4, Pack::kInt2};
constexpr double kFloatMax = std::numeric_limits<float>::max();

template <class T>
std::vector<std::byte> packed(Pack pack_as, const std::vector<T>& in, int64_t cols, Rounding rounding,
                              PackRandom random = {}) {
  const auto rows = static_cast<int64_t>(in.size()) / cols;
  std::vector<std::byte> bytes(packed_bytes(pack_as, rows, cols), std::byte{0xee});
  pack<T>(pack_as, in, rows, cols, rounding, random, bytes);
  return bytes;
}

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

const std::vector<float> kGolden = {0.75f, -1.5f, 0.1f, 3.0f, 0, 0, 0, 0, 1e-3f, -2e-3f, 5e-4f, 1.7e-3f};  // (3, 4)

TEST(PackBytes, NearestMatchesTheGoldenBytes) {
  const auto bytes = [](Pack pack_as) { return hex(packed(pack_as, kGolden, 4, Rounding::kNearest)); };
  EXPECT_EQ(bytes(Pack::kFp64),
            "000000000000e83f000000000000f8bf000000a09999b93f0000000000000840"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "000000e04d62503f000000e04d6260bf000000e04d62403f0000002051da5b3f");
  EXPECT_EQ(bytes(Pack::kFp32),
            "0000403f0000c0bfcdcccc3d00004040000000000000000000000000000000006f12833a6f1203bb6f12033a89d2de3a");
  EXPECT_EQ(bytes(Pack::kBf16), "403fc0bfcd3d40400000000000000000833a03bb033adf3a");
  EXPECT_EQ(bytes(Pack::kFp16), "00004040007000f4446400780000000000000000764976cd7645a44c");
  EXPECT_EQ(bytes(Pack::kInt8), "0000404000780000774d20c0047f000000003f81206c");
  EXPECT_EQ(bytes(Pack::kInt4), "0000404000780000774dc27000009362");
  EXPECT_EQ(bytes(Pack::kInt2), "00004040e1760000774de600e2");
}

TEST(PackBytes, StochasticMatchesTheGoldenBytes) {
  const PackRandom random{42, pack_stream(7, 3, 1, Direction::kBackward)};
  const auto bytes = [&](Pack pack_as) { return hex(packed(pack_as, kGolden, 4, Rounding::kStochastic, random)); };
  EXPECT_EQ(bytes(Pack::kBf16), "403fc0bfcd3d40400000000000000000843a03bb033ade3a");
  EXPECT_EQ(bytes(Pack::kFp16), "00004040007000f4456400780000000000000000774976cd7645a44c");
  EXPECT_EQ(bytes(Pack::kInt8), "0000404000780000774d20c1047f0000000040811f6b");
  EXPECT_EQ(bytes(Pack::kInt4), "0000404000780000774dd27000009451");
  EXPECT_EQ(bytes(Pack::kInt2), "0000404000780000774de600a3");
}

TEST(PackBytes, ZeroAndNanTensorsHaveTheirOwnBytes) {
  const std::vector<float> zeros(4), nans(4, std::numeric_limits<float>::infinity());
  EXPECT_EQ(hex(packed(Pack::kInt2, zeros, 4, Rounding::kStochastic)), "00000000000000");
  EXPECT_EQ(hex(packed(Pack::kFp16, zeros, 4, Rounding::kNearest)), "000000000000000000000000");
  EXPECT_EQ(hex(packed(Pack::kInt4, nans, 4, Rounding::kNearest)), "0000c07f00000000");
  EXPECT_EQ(hex(packed(Pack::kBf16, nans, 4, Rounding::kNearest)), "807f807f807f807f");
}

TEST(PackBytes, ScaleOfDoublesRoundsUpToAFiniteFloat) {
  const auto scale = [](double largest) {
    return hex(packed<double>(Pack::kFp16, {-largest, 0.0}, 2, Rounding::kNearest)).substr(0, 8);
  };
  EXPECT_EQ(scale(0.5), "0000003f");
  EXPECT_EQ(scale(0.7), "3433333f");  // the nearest float is below
  EXPECT_EQ(scale(0.1), "cdcccc3d");  // the nearest float is above
  EXPECT_EQ(scale(1e-300), "01000000");
  EXPECT_EQ(scale(1e300), "ffff7f7f");
}

TEST(PackStream, MatchesTheGoldenValuesAndKeepsFieldsApart) {
  EXPECT_EQ(pack_stream(7, 3, 1, Direction::kBackward), 0x037e0c0aeb99cbc3u);
  EXPECT_EQ(pack_stream(0, 0, 0, Direction::kForward), 0x037e0c0deb9acbc0u);
  EXPECT_EQ(pack_stream(0xffffffff, 0xffff, 0x7fff, Direction::kBackward), 0xfc81f3f21465343fu);
  const uint64_t base = pack_stream(0, 0, 0, Direction::kForward);
  EXPECT_EQ(base ^ pack_stream(1, 0, 0, Direction::kForward), uint64_t{1} << 32);
  EXPECT_EQ(base ^ pack_stream(0, 0xffff, 0, Direction::kForward), 0xffff0000u);
  EXPECT_EQ(base ^ pack_stream(0, 0, 0x7fff, Direction::kForward), 0xfffeu);
}

TEST(PackStreamDeathTest, FieldsOutOfRangeStopTheProgram) {
  EXPECT_DEATH((void)pack_stream(uint64_t{1} << 32, 0, 0, Direction::kForward), "exceed");
  EXPECT_DEATH((void)pack_stream(0, 1 << 16, 0, Direction::kForward), "exceed");
  EXPECT_DEATH((void)pack_stream(0, 0, 1 << 15, Direction::kForward), "exceed");
}

// The page in the simplest code: frexp and ldexp instead of bits, one number and one random word at a time.
class NaiveTwin {
 public:
  NaiveTwin(int64_t cols, Rounding rounding, PackRandom random)
      : cols_(static_cast<size_t>(cols)), rounding_(rounding), rng_(random.seed, random.stream) {}

  std::vector<std::byte> bf16(const std::vector<double>& in) {
    for (size_t e = 0; e < in.size(); ++e) {
      const double largest = std::bit_cast<float>(0x7f7f0000);
      const double value = std::min(small(std::min(std::abs(in[e]), kFloatMax), 7, -126, rounder(e)), largest);
      put(std::bit_cast<uint32_t>(static_cast<float>(std::copysign(value, in[e]))) >> 16, 2);
    }
    return bytes_;
  }

  std::vector<std::byte> scaled(Pack pack_as, const std::vector<double>& in) {
    const double scale = largest(in, 0, in.size());
    put(std::bit_cast<uint32_t>(static_cast<float>(scale)), 4);
    if (pack_as == Pack::kFp16) {
      for (size_t e = 0; e < in.size(); ++e) {
        put(half_bits(small(std::abs(in[e]) / scale * 32768, 10, -14, rounder(e))) | (std::signbit(in[e]) ? 0x8000 : 0),
            2);
      }
      return bytes_;
    }
    std::vector<double> units;
    for (size_t first = 0; first < in.size(); first += cols_) {
      double reach = largest(in, first, cols_);
      if (pack_as == Pack::kInt2 && rounding_ == Rounding::kNearest) {
        double squares = 0;
        for (size_t e = first; e < first + cols_; ++e) squares += in[e] * in[e];
        reach = std::min(reach, 1.5 * std::sqrt(squares / static_cast<double>(cols_)));
      }
      const double half = small(reach / scale * 32768, 10, -14, [](double v) { return std::ceil(v); });
      put(half_bits(half), 2);
      units.push_back(scale * (half / 32768));
    }
    const uint32_t bits = pack_as == Pack::kInt8 ? 8 : pack_as == Pack::kInt4 ? 4 : 2;
    uint32_t byte = 0;
    for (size_t e = 0; e < in.size(); ++e) {
      const uint32_t at = static_cast<uint32_t>(e) * bits % 8;
      byte |= (code(in[e], units[e / cols_], bits, rounder(e)) & ((1u << bits) - 1)) << at;
      if (at + bits < 8) continue;
      put(byte, 1);
      byte = 0;
    }
    return bytes_;
  }

 private:
  using Round = std::function<double(double)>;

  Round rounder(size_t e) const {
    if (rounding_ == Rounding::kNearest) return [](double v) { return std::nearbyint(v); };
    return [u = rng_.uniform(e)](double v) { return std::floor(v + u); };
  }
  static double small(double v, int p, int m, const Round& round) {
    int exponent = 0;
    std::frexp(std::max(v, std::ldexp(1.0, m)), &exponent);
    return std::ldexp(round(std::ldexp(v, p - (exponent - 1))), exponent - 1 - p);
  }
  static uint32_t half_bits(double half) {
    if (half < 0x1p-14) return static_cast<uint32_t>(half * 0x1p24);
    int exponent = 0;
    const double mantissa = std::frexp(half, &exponent);
    return static_cast<uint32_t>((exponent + 14) * 1024 + static_cast<int>(mantissa * 2048) - 1024);
  }
  static uint32_t code(double x, double unit, uint32_t bits, const Round& round) {
    if (unit == 0) return 0;
    if (bits == 8) return static_cast<uint32_t>(static_cast<int>(round(x * (127 / unit) + 128)) - 128);
    if (bits == 4) return static_cast<uint32_t>(static_cast<int>(round(x * (7 / unit) + 8)) - 8);
    return static_cast<uint32_t>(round(std::clamp(x, -unit, unit) * (1.5 / unit) + 1.5));
  }
  static double largest(const std::vector<double>& in, size_t first, size_t count) {
    double result = 0;
    for (size_t i = first; i < first + count; ++i) result = std::max(result, std::abs(in[i]));
    return result;
  }
  void put(uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }

  size_t cols_;
  Rounding rounding_;
  CounterRng rng_;
  std::vector<std::byte> bytes_;
};

// Rows of very different magnitudes, including rows of zeros: skipping work must not shift the random numbers.
std::vector<float> mixed_rows(int64_t rows, int64_t cols, double scale) {
  const CounterRng rng(23, "mixed");
  std::vector<float> values;
  for (int64_t row = 0; row < rows; ++row) {
    const double size = row % 7 == 3 ? 0 : scale * std::ldexp(1.0, -static_cast<int>(row % 45));
    for (int64_t col = 0; col < cols; ++col) {
      values.push_back(static_cast<float>(size * rng.unit_variance(static_cast<uint64_t>(row * cols + col))));
    }
  }
  return values;
}

TEST(PackBytes, MatchTheNaiveTwin) {
  const PackRandom random{3, pack_stream(1, 2, 0, Direction::kForward)};
  for (const auto& [rows, cols] : {std::pair{1, 4}, {2, 8}, {9, 1020}, {3, 1500}, {400, 12}, {2, 4096}}) {
    for (const double scale : {1.0, 1e-9, 1e-41, 1.9e38}) {
      const auto values = mixed_rows(rows, cols, scale);
      const std::vector<double> wide(values.begin(), values.end());
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        EXPECT_EQ(packed(Pack::kBf16, values, cols, rounding, random), NaiveTwin(cols, rounding, random).bf16(wide));
        for (const Pack pack_as : {Pack::kFp16, Pack::kInt8, Pack::kInt4, Pack::kInt2}) {
          EXPECT_TRUE(packed(pack_as, values, cols, rounding, random) ==
                      NaiveTwin(cols, rounding, random).scaled(pack_as, wide))
              << "pack " << int(pack_as) << " rounding " << int(rounding) << " of " << rows << " x " << cols << " * "
              << scale;
        }
      }
    }
  }
}

TEST(PackBytes, EveryBf16SurvivesTheRoundTrip) {
  std::vector<std::byte> bytes;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool nan = (bits & 0x7fff) > 0x7f80;
    const uint32_t kept = nan ? (bits & 0x8000) | 0x7fc0 : bits;  // one NaN per sign
    bytes.insert(bytes.end(), {std::byte(kept), std::byte(kept >> 8)});
  }
  std::vector<float> values(0x10000);
  unpack<float>(Pack::kBf16, bytes, 0x10000, 1, values).take();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) > 0x7f80) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(values[bits]), bits << 16);
  }
  EXPECT_EQ(packed(Pack::kBf16, values, 1, Rounding::kNearest), bytes);
  EXPECT_EQ(packed(Pack::kBf16, values, 1, Rounding::kStochastic), bytes);
}

TEST(PackBytes, EveryFp16UpToTheScaleSurvivesTheRoundTrip_TheRestIsNan) {
  std::vector<std::byte> bytes{{}, {}, std::byte{0x80}, std::byte{0x3f}};  // a scale of 1
  for (uint32_t bits = 0; bits < 0x10000; ++bits) bytes.insert(bytes.end(), {std::byte(bits), std::byte(bits >> 8)});
  std::vector<double> values(0x10000);
  unpack<double>(Pack::kFp16, bytes, 0x10000, 1, values).take();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -39) : std::ldexp(1024 + mantissa, exponent - 40);
    if (magnitude > 1) {
      ASSERT_TRUE(std::isnan(values[bits])) << bits;
      values[bits] = 0;
      bytes[4 + 2 * bits] = bytes[5 + 2 * bits] = {};
    } else {
      ASSERT_EQ(values[bits], (bits & 0x8000) != 0 ? -magnitude : magnitude) << bits;
    }
  }
  EXPECT_EQ(packed(Pack::kFp16, values, 1, Rounding::kNearest), bytes);
  EXPECT_EQ(packed(Pack::kFp16, values, 1, Rounding::kStochastic), bytes);
}

TEST(PackBytes, HaveTheAnnouncedSize) {
  const auto sizes = [](int64_t rows, int64_t cols) {
    std::vector<size_t> all;
    for (const Pack pack_as : kAllPacks) all.push_back(packed_bytes(pack_as, rows, cols));
    return all;
  };
  EXPECT_EQ(sizes(1, 4), (std::vector<size_t>{32, 16, 8, 12, 10, 8, 7}));
  EXPECT_EQ(sizes(4096, 16), (std::vector<size_t>{524288, 262144, 131072, 131076, 73732, 40964, 24580}));
  EXPECT_EQ(sizes(0, 8), (std::vector<size_t>{0, 0, 0, 4, 4, 4, 4}));
  EXPECT_EQ(packed_bytes(Pack::kInt4, int64_t{1} << 32, 1 << 20), (size_t{1} << 51) + (size_t{1} << 33) + 4);
}

TEST(PackBytes, EveryByteIsWritten) {
  for (const Pack pack_as : kAllPacks) {
    const auto values = mixed_rows(5, 12, 1.0);
    std::vector<std::byte> first(packed_bytes(pack_as, 5, 12), std::byte{0x00}), second(first.size(), std::byte{0xff});
    pack<float>(pack_as, values, 5, 12, Rounding::kNearest, {}, first);
    pack<float>(pack_as, values, 5, 12, Rounding::kNearest, {}, second);
    EXPECT_EQ(first, second) << int(pack_as);
  }
}

TEST(PackProblem, NamesTheNearestWidthThatFits) {
  for (const Pack pack_as : kAllPacks) EXPECT_EQ(pack_problem(pack_as, 4), "");
  for (const Pack pack_as : {Pack::kFp64, Pack::kFp32, Pack::kBf16, Pack::kFp16, Pack::kInt8}) {
    EXPECT_EQ(pack_problem(pack_as, 1), "");
    EXPECT_EQ(pack_problem(pack_as, 4095), "");
  }
  EXPECT_EQ(pack_problem(Pack::kInt4, 15), "int4 puts 2 numbers into a byte, so 15 columns do not fit: use 14 or 16");
  EXPECT_EQ(pack_problem(Pack::kInt2, 18), "int2 puts 4 numbers into a byte, so 18 columns do not fit: use 16 or 20");
  EXPECT_EQ(pack_problem(Pack::kInt2, 3), "int2 puts 4 numbers into a byte, so 3 columns do not fit: use 4");
  EXPECT_EQ(pack_problem(Pack::kFp32, 0), "cannot pack 0 columns: needs 1 to 1048576");
  EXPECT_EQ(pack_problem(Pack::kInt8, 1 << 21), "cannot pack 2097152 columns: needs 1 to 1048576");
}

TEST(Unpack, RefusesAnyOtherSizeWithoutTouchingTheOutput) {
  std::vector<float> out(12, 7.0f);
  for (const Pack pack_as : kAllPacks) {
    const size_t right = packed_bytes(pack_as, 3, 4);
    for (size_t size = 0; size < 2 * right; ++size) {
      if (size == right) continue;
      const std::vector<std::byte> bytes(size);
      EXPECT_FALSE(unpack<float>(pack_as, bytes, 3, 4, out).ok()) << int(pack_as) << " " << size;
    }
  }
  EXPECT_EQ(out, std::vector<float>(12, 7.0f));
  const std::vector<std::byte> bytes(9);
  EXPECT_EQ(unpack<float>(Pack::kInt4, bytes, 3, 4, out).error().message,
            "9 bytes for 3 x 4 numbers in int4: needs 16");
}

TEST(Unpack, RefusesShapesThatCannotBePacked) {
  const std::vector<std::byte> bytes(64);
  std::vector<float> out(64);
  EXPECT_FALSE(unpack<float>(Pack::kInt4, bytes, 2, 3, out).ok());
  EXPECT_FALSE(unpack<float>(Pack::kFp32, bytes, -1, 4, out).ok());
  EXPECT_FALSE(unpack<float>(Pack::kFp32, bytes, INT64_MAX, INT64_MAX, out).ok());
  EXPECT_FALSE(unpack<float>(Pack::kFp32, bytes, 1, 0, out).ok());
  EXPECT_FALSE(unpack<float>(Pack::kFp32, bytes, (int64_t{1} << 32) + 1, 4, out).ok());
  EXPECT_FALSE(unpack<float>(Pack::kFp32, {}, int64_t{1} << 62, 4, out).ok());  // 2^66 bytes would wrap to none
}

std::vector<float> unpacked(Pack pack_as, std::vector<int> values, int64_t rows, int64_t cols) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  std::vector<float> out(static_cast<size_t>(rows * cols));
  unpack<float>(pack_as, bytes, rows, cols, out).take();
  return out;
}

TEST(Unpack, BytesThatNoEncoderWritesAreNan) {
  const auto nan = [](float value) { return std::isnan(value); };
  // Tensor scales: -1, -0, infinity, NaN; beside them a row scale of 1 and two codes.
  for (const std::array<int, 2> top : {std::array{0x80, 0xbf}, {0, 0x80}, {0x80, 0x7f}, {0xc0, 0x7f}}) {
    EXPECT_TRUE(std::ranges::all_of(unpacked(Pack::kInt4, {0, 0, top[0], top[1], 0, 0x78, 0x11}, 1, 2), nan));
  }
  // Row scales: just above 1, -1, -0, infinity, NaN.
  for (const std::array<int, 2> half : {std::array{1, 0x78}, {0, 0xf8}, {0, 0x80}, {0, 0x7c}, {1, 0x7c}}) {
    EXPECT_TRUE(std::ranges::all_of(unpacked(Pack::kInt2, {0, 0, 0x80, 0x3f, half[0], half[1], 0x11}, 1, 4), nan));
  }
  // An invalid code affects only its own element. With the largest scale, no other element reaches infinity.
  const auto int8 = unpacked(Pack::kInt8, {0xff, 0xff, 0x7f, 0x7f, 0, 0x78, 0x80, 0x81, 0x7f}, 1, 3);
  EXPECT_TRUE(std::isnan(int8[0]));
  EXPECT_EQ(int8[1], -kFloatMax);
  EXPECT_EQ(int8[2], kFloatMax);
  const auto int4 = unpacked(Pack::kInt4, {0xff, 0xff, 0x7f, 0x7f, 0, 0x78, 0x98, 0x87}, 1, 4);
  EXPECT_TRUE(std::isnan(int4[0]) && std::isnan(int4[3]));
  EXPECT_EQ(int4[1], -kFloatMax);
  EXPECT_EQ(int4[2], kFloatMax);
}

TEST(Unpack, RandomBytesGiveFiniteNumbersOrNan) {
  const CounterRng rng(99, "random bytes");
  uint64_t draw = 0;
  std::vector<float> out(5 * 12);
  for (const Pack pack_as : {Pack::kFp16, Pack::kInt8, Pack::kInt4, Pack::kInt2}) {
    std::vector<std::byte> bytes(packed_bytes(pack_as, 5, 12));
    size_t finite = 0;
    for (int trial = 0; trial < 500; ++trial) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.bits32(draw++));
      ASSERT_TRUE(unpack<float>(pack_as, bytes, 5, 12, out).ok());
      for (const float value : out) {
        ASSERT_FALSE(std::isinf(value)) << int(pack_as);
        if (std::isfinite(value)) ++finite;
      }
    }
    EXPECT_GT(finite, 1000u);
  }
}

TEST(PackDeathTest, WrongSizesStopTheProgram) {
  const std::vector<float> in(8);
  std::vector<std::byte> out(8);
  EXPECT_DEATH(pack<float>(Pack::kInt4, in, 2, 4, Rounding::kNearest, {}, out), "needs 12 bytes");
  EXPECT_DEATH(pack<float>(Pack::kBf16, in, 1, 4, Rounding::kNearest, {}, out), "8 numbers into 8 bytes");
  EXPECT_DEATH(pack<float>(Pack::kInt2, in, 1, 3, Rounding::kNearest, {}, out), "use 4");
}

}  // namespace
}  // namespace thinpipe
