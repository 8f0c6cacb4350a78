// Bytes to numbers, as specified in docs/wire.md ("Packs"). The bytes may be hostile; their number has been checked.
#include <array>

#include "base/result.h"
#include "boundary/pack_numbers.h"

namespace thinpipe::pack_internal {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class Wire, class T>
void decode_plain(const std::byte* in, std::span<T> out) {
  if constexpr (std::is_same_v<Wire, T>) {
    if (!out.empty()) std::memcpy(out.data(), in, out.size_bytes());
  } else {
    for (size_t i = 0; i < out.size(); ++i) out[i] = narrow<T>(load<Wire>(in + sizeof(Wire) * i));
  }
}

template <class T>
void decode_bf16(const std::byte* in, std::span<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::bit_cast<float>(uint32_t{load<uint16_t>(in + 2 * i)} << 16);
  }
}

template <class T>
void decode_fp16_values(const std::byte* in, double scale, std::span<T> out) {
  T* __restrict to = out.data();
  for (size_t i = 0; i < out.size(); ++i) {
    to[i] = static_cast<T>(scale * decode_fp16(load<uint16_t>(in + 2 * i)));
  }
}

// The values of a row's codes if the outermost code is `unit`, by their bits.
template <class T, int kBits>
std::array<T, 1 << kBits> code_values(double unit) {
  std::array<T, 1 << kBits> values;
  for (int code = 0; code < (1 << kBits); ++code) {
    double value = 0;
    if constexpr (kBits == 4) {
      value = code == 8 ? kNan : unit / 7 * (code < 8 ? code : code - 16);
    } else {
      value = unit == 0 ? 0 : unit / 3 * (2 * code - 3);
    }
    values[static_cast<size_t>(code)] = static_cast<T>(value);
  }
  return values;
}

template <class T, int kBits>
void decode_row(const std::byte* in, double unit, size_t cols, T* __restrict out) {
  if constexpr (kBits == 8) {
    const double step = unit / 127;
    for (size_t i = 0; i < cols; ++i) {
      const int code = load<int8_t>(in + i);  // NOLINT(bugprone-signed-char-misuse): a number, not a character
      const T value = static_cast<T>(step * code);
      out[i] = code != -128 ? value : std::numeric_limits<T>::quiet_NaN();
    }
  } else {
    const auto values = code_values<T, kBits>(unit);
    constexpr size_t kPerByte = 8 / kBits;
    for (size_t i = 0; i < cols / kPerByte; ++i) {
      const auto byte = std::to_integer<uint32_t>(in[i]);
      for (size_t part = 0; part < kPerByte; ++part) {
        out[kPerByte * i + part] = values[(byte >> (kBits * part)) & ((1u << kBits) - 1)];
      }
    }
  }
}

template <class T, int kBits>
void decode_codes(const std::byte* in, size_t rows, size_t cols, double scale, std::span<T> out) {
  const std::byte* codes = in + 2 * rows;
  for (size_t row = 0; row < rows; ++row) {
    const uint32_t row_scale = load<uint16_t>(in + 2 * row);
    const double unit = row_scale <= kFp16One ? scale * decode_fp16(row_scale) : kNan;
    decode_row<T, kBits>(codes + row * cols * kBits / 8, unit, cols, out.data() + row * cols);
  }
}

template <class T>
void decode_scaled(Pack pack, const std::byte* in, size_t rows, size_t cols, std::span<T> out) {
  const auto scale_bits = load<uint32_t>(in);
  if (scale_bits >= kFloatInfinityBits) {  // infinite, NaN or negative
    for (T& value : out) value = std::numeric_limits<T>::quiet_NaN();
    return;
  }
  const double scale = std::bit_cast<float>(scale_bits);
  const std::byte* at = in + sizeof(float);
  if (pack == Pack::kFp16) return decode_fp16_values(at, scale, out);
  if (pack == Pack::kInt8) return decode_codes<T, 8>(at, rows, cols, scale, out);
  if (pack == Pack::kInt4) return decode_codes<T, 4>(at, rows, cols, scale, out);
  TP_CHECK(pack == Pack::kInt2, "unknown pack {}", static_cast<int>(pack));
  return decode_codes<T, 2>(at, rows, cols, scale, out);
}

}  // namespace

template <class T>
void decode(Pack pack, std::span<const std::byte> in, int64_t rows, int64_t cols, std::span<T> out) {
  if (pack == Pack::kFp64) return decode_plain<double>(in.data(), out);
  if (pack == Pack::kFp32) return decode_plain<float>(in.data(), out);
  if (pack == Pack::kBf16) return decode_bf16(in.data(), out);
  decode_scaled(pack, in.data(), static_cast<size_t>(rows), static_cast<size_t>(cols), out);
}

template void decode(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<float>);
template void decode(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<double>);

}  // namespace thinpipe::pack_internal
