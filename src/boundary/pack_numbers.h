// The numbers inside a pack (docs/wire.md): bitwise conversion between 16-bit floats and double, the two roundings, and
// bytes. Code used in loops over elements is branch-free, so that the compiler can vectorise it. Internal to the
// folder.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "boundary/pack.h"

namespace thinpipe::pack_internal {

static_assert(std::endian::native == std::endian::little, "packs are little-endian, like memory");

inline constexpr float kFloatMax = std::numeric_limits<float>::max();
inline constexpr uint32_t kFloatInfinityBits = 0x7f800000;

template <class Number>
void store(std::byte* at, Number number) {
  std::memcpy(at, &number, sizeof number);
}
template <class Number>
Number load(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

// To the nearest integer, ties to even, or to floor(value + word / 2^32). -1/4 < value < 2^16.
template <Rounding kRounding>
int32_t round_to_integer(double value, uint32_t word) {
  if constexpr (kRounding == Rounding::kNearest) {
    constexpr double kNoFraction = 0x1p52;  // doubles above this are integers, so the addition rounds
    return static_cast<int32_t>((value + kNoFraction) - kNoFraction);
  } else {
    // Through a signed number: baseline x86-64 cannot convert from unsigned.
    const double uniform = (static_cast<double>(static_cast<int32_t>(word ^ 0x80000000)) + 0x1p31) * 0x1p-32;
    return static_cast<int32_t>(value + uniform);
  }
}

// A 16-bit float: sign, exponent and kMantissaBits, denormals below 2^kMinExponent. `kMaxBits` is the largest finite
// one.
template <int kMantissaBits, int kMinExponent, uint32_t kMaxBits>
struct SmallFloat {
  static constexpr uint32_t kMax = kMaxBits;

  // The bits of a finite magnitude >= 0; `round(places)` rounds the last place. Never above kMaxBits.
  template <class Round>
  static uint32_t encode(double magnitude, Round round) {
    constexpr double kSmallestNormal = std::bit_cast<double>(static_cast<uint64_t>(1023 + kMinExponent) << 52);
    const double normal = magnitude > kSmallestNormal ? magnitude : kSmallestNormal;
    const uint64_t exponent = std::bit_cast<uint64_t>(normal) >> 52;
    // 2^(kMantissaBits - exponent): the power that makes one unit in the last place 1.
    const double to_places = std::bit_cast<double>((2046 + kMantissaBits - exponent) << 52);
    const auto places = static_cast<uint32_t>(round(magnitude * to_places));
    // A magnitude rounded up to the next power of two carries into the exponent by itself.
    const auto above_smallest = static_cast<uint32_t>(exponent) - static_cast<uint32_t>(1023 + kMinExponent);
    const uint32_t bits = (above_smallest << kMantissaBits) + places;
    return bits < kMaxBits ? bits : kMaxBits;
  }
};

using Bf16 = SmallFloat<7, -126, 0x7f7f>;

// An fp16 number represents value / 2^15, so that the whole range below the scale is used: 0x7800 is 1.
using Fp16 = SmallFloat<10, -14, 0x7bff>;
inline constexpr uint32_t kFp16One = 0x7800;
inline constexpr double kFp16Unit = 0x1p15;

// The fp16 number times 2^-15, exact in float; NaN if its magnitude exceeds 1, which no encoder writes.
inline float decode_fp16(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fff;
  const uint32_t exponent = magnitude >> 10;
  const uint32_t implicit = exponent != 0 ? 0x400 : 0;
  const uint32_t shift = exponent != 0 ? exponent : 1;
  const auto places = static_cast<float>(static_cast<int32_t>((bits & 0x3ff) | implicit));
  // places * 2^(shift - 25 - 15). The power is built from its bits; both factors are always normal floats.
  const float value = places * std::bit_cast<float>((shift - 40 + 127) << 23);
  const uint32_t nan = magnitude > kFp16One ? 0x7fc00000 : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | nan | (bits & 0x8000) << 16);
}

// Rounds to nearest, but a finite number stays finite.
template <class T>
T narrow(double value) {
  const T result = static_cast<T>(value);
  if (std::isinf(result) && !std::isinf(value)) return std::copysign(std::numeric_limits<T>::max(), result);
  return result;
}

// Encodes and decodes the elements of one pack. `in` and `out` have the right sizes; see pack.h.
template <class T>
void encode(Pack pack, std::span<const T> in, int64_t rows, int64_t cols, Rounding rounding, PackRandom random,
            std::span<std::byte> out);
template <class T>
void decode(Pack pack, std::span<const std::byte> in, int64_t rows, int64_t cols, std::span<T> out);

}  // namespace thinpipe::pack_internal
