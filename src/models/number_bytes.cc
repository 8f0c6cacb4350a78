#include "models/number_bytes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied from memory without conversion");

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kInfinity = 0x7f800000;

template <class Stored, class To, class From>
Result<std::string> stored_as(std::span<const float> values, const char* name, To to, From from) {
  std::string bytes(values.size() * sizeof(Stored), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const Stored number = to(values[i]);
    if (!std::isfinite(from(number))) {
      return Error{fmt::format("value {} is {}, which {} cannot hold", i, values[i], name)};
    }
    std::memcpy(bytes.data() + i * sizeof(Stored), &number, sizeof(Stored));
  }
  return bytes;
}

template <class Stored, class Convert>
Result<std::vector<float>> loaded_as(std::span<const std::byte> bytes, Convert convert) {
  TP_CHECK(bytes.size() % sizeof(Stored) == 0, "{} bytes of numbers of {}", bytes.size(), sizeof(Stored));
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored number;
    std::memcpy(&number, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = convert(number);
    if (!std::isfinite(values[i])) return Error{fmt::format("value {} is not a finite float", i)};
  }
  return values;
}

}  // namespace

uint16_t to_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= ~kSign;
  constexpr uint32_t kTooLarge = std::bit_cast<uint32_t>(65536.0F);
  constexpr uint32_t kSmallestNormal = std::bit_cast<uint32_t>(0x1p-14F);
  if (bits >= kTooLarge) return sign | (bits > kInfinity ? 0x7e00 : 0x7c00);
  if (bits < kSmallestNormal) {
    // The last place of a float between 0.5 and 1 equals that of a subnormal half: the addition rounds.
    const float shifted = std::bit_cast<float>(bits) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)));
  }
  const uint32_t rounded = bits - ((127 - 15) << 23) + 0xfff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t rest = bits & 0x7fffU;
  if (rest < 0x400) {
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-24F));
  }
  const uint32_t exponent = rest < 0x7c00 ? 127 - 15 : 255 - 31;
  return std::bit_cast<float>(sign | ((rest << 13) + (exponent << 23)));
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

Result<std::string> stored_values(std::span<const float> values, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return stored_as<float>(values, "F32", std::identity(), std::identity());
    case Dtype::kF16:
      return stored_as<uint16_t>(values, "F16 (at most 65504)", to_f16, from_f16);
    case Dtype::kBf16:
      return stored_as<uint16_t>(values, "BF16", to_bf16, from_bf16);
    default:
      TP_CHECK(false, "values are not stored as {}", dtype_name(dtype));
  }
}

Result<std::vector<float>> loaded_values(std::span<const std::byte> bytes, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return loaded_as<double>(bytes, [](double value) { return static_cast<float>(value); });
    case Dtype::kF32:
      return loaded_as<float>(bytes, std::identity());
    case Dtype::kF16:
      return loaded_as<uint16_t>(bytes, from_f16);
    case Dtype::kBf16:
      return loaded_as<uint16_t>(bytes, from_bf16);
    default:
      TP_CHECK(false, "values are not read from {}", dtype_name(dtype));
  }
}

Result<std::string> q8_blocks(std::span<const float> values) {
  constexpr size_t kBlock = 32;
  TP_CHECK(values.size() % kBlock == 0, "{} values in blocks of {}", values.size(), kBlock);
  std::string bytes;
  bytes.reserve(values.size() / kBlock * (kBlock + 2));
  for (size_t first = 0; first < values.size(); first += kBlock) {
    float largest = 0;
    size_t at = first;
    // Written so that NaN counts as the largest.
    for (size_t i = first; i < first + kBlock && !std::isnan(largest); ++i) {
      if (std::fabs(values[i]) <= largest) continue;
      largest = std::fabs(values[i]);
      at = i;
    }
    const float scale = largest / 127;
    const uint16_t stored = to_f16(scale);
    if ((stored & 0x7c00) == 0x7c00) {
      return Error{fmt::format("value {} is {}, which Q8_0 (at most 8319008) cannot hold", at, values[at])};
    }
    bytes += static_cast<char>(stored & 0xff);
    bytes += static_cast<char>(stored >> 8);
    // Divides by the scale before rounding it, as llama.cpp's own quantiser does, so that both write the same file. A
    // scale without an inverse is zero as a 16-bit float, and so are the values.
    const float inverse = std::isfinite(1 / scale) ? 1 / scale : 0;
    for (size_t i = first; i < first + kBlock; ++i) {
      const float quotient = std::clamp(std::round(values[i] * inverse), -127.0F, 127.0F);
      bytes += static_cast<char>(static_cast<int8_t>(quotient));
    }
  }
  return bytes;
}

}  // namespace thinpipe
