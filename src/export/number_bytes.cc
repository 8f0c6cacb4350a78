#include "export/number_bytes.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace thinpipe {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they lie in memory");

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kInfinity = 0x7f800000;

template <class Stored, class Convert>
Result<std::string> stored_as(std::span<const float> values, const char* name, Convert convert) {
  std::string bytes(values.size() * sizeof(Stored), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const auto [number, finite] = convert(values[i]);
    if (!finite) return Error{fmt::format("value {} is {}, which {} cannot hold", i, values[i], name)};
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
    // The last place of a float between 0.5 and 1 is that of a subnormal half: the addition rounds.
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
      return stored_as<float>(values, "F32", [](float value) { return std::pair(value, std::isfinite(value)); });
    case Dtype::kF16:
      return stored_as<uint16_t>(values, "F16 (at most 65504)", [](float value) {
        const uint16_t bits = to_f16(value);
        return std::pair(bits, (bits & 0x7c00) != 0x7c00);
      });
    case Dtype::kBf16:
      return stored_as<uint16_t>(values, "BF16", [](float value) {
        const uint16_t bits = to_bf16(value);
        return std::pair(bits, (bits & 0x7f80) != 0x7f80);
      });
    default:
      break;
  }
  TP_CHECK(false, "values are not stored as {}", dtype_name(dtype));
}

Result<std::vector<float>> loaded_values(std::span<const std::byte> bytes, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return loaded_as<double>(bytes, [](double value) { return static_cast<float>(value); });
    case Dtype::kF32:
      return loaded_as<float>(bytes, [](float value) { return value; });
    case Dtype::kF16:
      return loaded_as<uint16_t>(bytes, from_f16);
    case Dtype::kBf16:
      return loaded_as<uint16_t>(bytes, from_bf16);
    default:
      break;
  }
  TP_CHECK(false, "values are not read from {}", dtype_name(dtype));
}

}  // namespace thinpipe
