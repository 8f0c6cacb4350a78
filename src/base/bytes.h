// Numbers as bytes, little-endian, whatever machine runs this: what file formats and messages are made of. Unsigned
// integers and floats.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/result.h"

namespace thinpipe {

template <class T>
concept LittleEndianNumber = (std::unsigned_integral<T> && !std::same_as<T, bool>) || std::floating_point<T>;

namespace bytes_internal {
// The unsigned integer that holds the bits of a T.
template <LittleEndianNumber T>
using Bits = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
}  // namespace bytes_internal

// Name the type where its width is part of a format: le_bytes<uint32_t>(length).
template <LittleEndianNumber T>
constexpr std::array<char, sizeof(T)> le_bytes(T value) {
  const auto bits = std::bit_cast<bytes_internal::Bits<T>>(value);
  std::array<char, sizeof(T)> bytes{};
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(static_cast<uint64_t>(bits) >> (8 * i));
  return bytes;
}

// The number at `offset`. The bytes must be there: check the length of what comes from outside first.
template <LittleEndianNumber T>
constexpr T get_le(std::string_view bytes, size_t offset = 0) {
  TP_CHECK(offset <= bytes.size() && bytes.size() - offset >= sizeof(T), "{} bytes at {} of {}", sizeof(T), offset,
           bytes.size());
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  }
  return std::bit_cast<T>(static_cast<bytes_internal::Bits<T>>(bits));
}

}  // namespace thinpipe
