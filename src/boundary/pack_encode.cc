// Numbers to bytes, as specified in docs/wire.md ("Packs"). All arithmetic is in double, for float and double input
// alike, so that neither a denormal float scale nor its reciprocal overflows.
#include <algorithm>
#include <array>

#include "base/result.h"
#include "base/rng.h"
#include "boundary/pack_numbers.h"

namespace thinpipe::pack_internal {
namespace {

// Elements are encoded in chunks that fit the first-level cache together with their random words.
constexpr size_t kChunk = 1024;

// The random words of consecutive elements, one chunk at a time.
template <Rounding kRounding>
class Draws {
 public:
  explicit Draws(PackRandom random) : rng_(random.seed, random.stream) {}

  // Of the `wanted` elements from `first` on, how many words() now covers: at least one, at most kChunk. Chunks end at
  // multiples of kChunk, so never inside a byte of several codes.
  size_t take(size_t first, size_t wanted) {
    const size_t offset = first % kChunk;
    if constexpr (kRounding == Rounding::kStochastic) {
      if (first - offset != chunk_) {
        chunk_ = first - offset;
        rng_.fill_bits32(chunk_, words_);
      }
      words_at_ = words_.data() + offset;
    }
    return std::min(wanted, kChunk - offset);
  }
  const uint32_t* words() const { return words_at_; }

 private:
  CounterRng rng_;
  size_t chunk_ = SIZE_MAX;  // the element of words_[0]; SIZE_MAX: none yet
  std::array<uint32_t, kRounding == Rounding::kStochastic ? kChunk : 0> words_;
  const uint32_t* words_at_ = nullptr;
};

template <Rounding kRounding>
uint32_t word_of(const uint32_t* words, size_t element) {
  if constexpr (kRounding == Rounding::kStochastic) return words[element];
  return 0;
}

// max |x|; NaN if any x is not finite. The bits of magnitudes are ordered like the magnitudes, with infinity and NaN on
// top.
template <class T>
T max_magnitude(const T* in, size_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  Bits top = 0;
  for (size_t i = 0; i < count; ++i) {
    const Bits magnitude = std::bit_cast<Bits>(in[i]) & std::numeric_limits<Bits>::max();
    top = magnitude > top ? magnitude : top;
  }
  const T result = std::bit_cast<T>(top);
  return std::isfinite(result) ? result : std::numeric_limits<T>::quiet_NaN();
}

// The scale of a tensor: the smallest float that is not below `maximum`; the largest float if `maximum` exceeds it.
float scale_above(double maximum) {
  if (std::isnan(maximum)) return std::numeric_limits<float>::quiet_NaN();
  if (maximum >= kFloatMax) return kFloatMax;
  const auto scale = static_cast<float>(maximum);
  return scale < maximum ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) + 1) : scale;
}

template <class T>
uint32_t bf16_bits(T value, auto round) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7fc0;
  if (std::isinf(value)) return sign | 0x7f80;
  return sign | Bf16::encode(magnitude, round);
}

// The same from the bits of a float; bf16 keeps its upper half.
template <Rounding kRounding>
uint32_t bf16_bits_of_float(float value, uint32_t word) {
  const auto bits = std::bit_cast<int32_t>(value);
  const int32_t sign = (bits >> 16) & 0x8000;
  const int32_t magnitude = bits & 0x7fffffff;
  const int32_t up =
      kRounding == Rounding::kNearest ? 0x7fff + ((magnitude >> 16) & 1) : static_cast<int32_t>(word >> 16);
  constexpr auto kInfinity = static_cast<int32_t>(kFloatInfinityBits);
  const int32_t finite = magnitude < kInfinity ? magnitude : 0;  // keeps the sum from overflowing
  int32_t result = (finite + up) >> 16;
  result = result < static_cast<int32_t>(Bf16::kMax) ? result : static_cast<int32_t>(Bf16::kMax);
  result = magnitude == kInfinity ? 0x7f80 : result;
  result = magnitude > kInfinity ? 0x7fc0 : result;
  return static_cast<uint32_t>(sign | result);
}

template <class T, Rounding kRounding>
void encode_bf16(std::span<const T> in, PackRandom random, std::byte* __restrict out) {
  Draws<kRounding> draws(random);
  for (size_t first = 0; first < in.size();) {
    const size_t count = draws.take(first, in.size() - first);
    const T* x = in.data() + first;
    const uint32_t* words = draws.words();
    std::byte* at = out + 2 * first;
    for (size_t j = 0; j < count; ++j) {
      const uint32_t word = word_of<kRounding>(words, j);
      uint32_t bits = 0;
      if constexpr (std::is_same_v<T, float>) {
        bits = bf16_bits_of_float<kRounding>(x[j], word);
      } else {
        bits = bf16_bits(x[j], [word](double places) { return round_to_integer<kRounding>(places, word); });
      }
      store(at + 2 * j, static_cast<uint16_t>(bits));
    }
    first += count;
  }
}

template <class T, Rounding kRounding>
void encode_fp16_values(std::span<const T> in, double scale, PackRandom random, std::byte* __restrict out) {
  Draws<kRounding> draws(random);
  for (size_t first = 0; first < in.size();) {
    const size_t count = draws.take(first, in.size() - first);
    const T* x = in.data() + first;
    const uint32_t* words = draws.words();
    std::byte* at = out + 2 * first;
    for (size_t j = 0; j < count; ++j) {
      const double value = x[j];
      const double magnitude = std::fabs(value) < scale ? std::fabs(value) : scale;
      const uint32_t word = word_of<kRounding>(words, j);
      const uint32_t bits = Fp16::encode(magnitude / scale * kFp16Unit,
                                         [word](double places) { return round_to_integer<kRounding>(places, word); });
      const auto sign = static_cast<uint32_t>(std::bit_cast<uint64_t>(value) >> 48) & 0x8000;
      store(at + 2 * j, static_cast<uint16_t>(sign | bits));
    }
    first += count;
  }
}

// kTop: the code of the row's reach. Codes are computed as positive numbers; kFlip turns them into two's complement.
template <int kBits>
struct Code;
template <>
struct Code<8> {
  static constexpr double kTop = 127, kOffset = 128;
  static constexpr int32_t kFlip = 128;
};
template <>
struct Code<4> {
  static constexpr double kTop = 7, kOffset = 8;
  static constexpr int32_t kFlip = 8;
};
template <>
struct Code<2> {
  static constexpr double kTop = 1.5, kOffset = 1.5;
  static constexpr int32_t kFlip = 0;
};

// Packs `count` codes of kBits, the first in the lowest bits of the first byte.
template <int kBits>
void store_codes(const uint8_t* codes, size_t count, std::byte* __restrict out) {
  constexpr size_t kPerByte = 8 / kBits;
  for (size_t i = 0; i < count / kPerByte; ++i) {
    uint32_t byte = 0;
    for (size_t part = 0; part < kPerByte; ++part) byte |= uint32_t{codes[kPerByte * i + part]} << (kBits * part);
    out[i] = static_cast<std::byte>(byte);
  }
}

// Whether numbers may lie beyond the outermost codes. Stochastic rounding must not clip, because that would change the
// mean.
template <int kBits, Rounding kRounding>
constexpr bool kClips = kBits == 2 && kRounding == Rounding::kNearest;

// How far a row's codes must reach: to its maximum; or, if they may clip, to 1.5 times its root mean square, which puts
// int2's levels where a normal distribution loses least.
template <class T, bool kMayClip>
double row_reach(const T* in, size_t cols) {
  const double maximum = max_magnitude(in, cols);
  if constexpr (!kMayClip) return maximum;
  double squares = 0;
  for (size_t i = 0; i < cols; ++i) {
    const double value = std::clamp<double>(in[i], -kFloatMax, kFloatMax);
    squares += value * value;
  }
  return std::min(maximum, 1.5 * std::sqrt(squares / static_cast<double>(cols)));
}

// The smallest fp16 (in 1 / 2^15) not below reach / scale, so that values within the reach never clip.
uint32_t row_scale_bits(double reach, double scale) {
  return Fp16::encode(std::min(reach, scale) / scale * kFp16Unit, [](double places) {
    const auto below = static_cast<int32_t>(places);
    return below < places ? below + 1 : below;
  });
}

// Encodes the elements first .. first + count of the matrix at `in`, which lie in one row. `unit` is the row's reach as
// the receiver will decode it.
template <class T, int kBits, Rounding kRounding>
void encode_row(const T* in, size_t first, size_t count, double unit, Draws<kRounding>& draws, std::byte* out) {
  using C = Code<kBits>;
  const double to_code = C::kTop / unit;
  std::array<uint8_t, kChunk> codes;
  for (const size_t end = first + count; first < end;) {
    const size_t taken = draws.take(first, end - first);
    const T* x = in + first;
    const uint32_t* words = draws.words();
    for (size_t j = 0; j < taken; ++j) {
      double value = x[j];
      if constexpr (kClips<kBits, kRounding>) {
        value = std::clamp(value, -unit, unit);
      } else if constexpr (std::is_same_v<T, double>) {
        value = std::clamp<double>(value, -kFloatMax, kFloatMax);
      }
      const int32_t code = round_to_integer<kRounding>(value * to_code + C::kOffset, word_of<kRounding>(words, j));
      codes[j] = static_cast<uint8_t>((code ^ C::kFlip) & ((1 << kBits) - 1));
    }
    store_codes<kBits>(codes.data(), taken, out + first * kBits / 8);
    first += taken;
  }
}

template <class T, int kBits, Rounding kRounding>
void encode_codes(std::span<const T> in, size_t rows, size_t cols, double scale, PackRandom random, std::byte* out) {
  std::byte* codes_out = out + 2 * rows;
  Draws<kRounding> draws(random);
  for (size_t row = 0; row < rows; ++row) {
    const size_t first = row * cols;
    const uint32_t row_scale = row_scale_bits(row_reach<T, kClips<kBits, kRounding>>(in.data() + first, cols), scale);
    store(out + 2 * row, static_cast<uint16_t>(row_scale));
    if (row_scale == 0) {
      std::memset(codes_out + first * kBits / 8, 0, cols * kBits / 8);
    } else {
      encode_row<T, kBits>(in.data(), first, cols, scale * decode_fp16(row_scale), draws, codes_out);
    }
  }
}

template <class T, Rounding kRounding>
void encode_scaled(Pack pack, std::span<const T> in, size_t rows, size_t cols, PackRandom random,
                   std::span<std::byte> out) {
  const float scale = scale_above(max_magnitude(in.data(), in.size()));
  store(out.data(), scale);
  std::byte* at = out.data() + sizeof scale;
  if (std::isnan(scale) || scale == 0) {
    std::memset(at, 0, out.size() - sizeof scale);
    return;
  }
  if (pack == Pack::kFp16) return encode_fp16_values<T, kRounding>(in, scale, random, at);
  if (pack == Pack::kInt8) return encode_codes<T, 8, kRounding>(in, rows, cols, scale, random, at);
  if (pack == Pack::kInt4) return encode_codes<T, 4, kRounding>(in, rows, cols, scale, random, at);
  TP_CHECK(pack == Pack::kInt2, "unknown pack {}", static_cast<int>(pack));
  return encode_codes<T, 2, kRounding>(in, rows, cols, scale, random, at);
}

template <class T, class Wire>
void encode_plain(std::span<const T> in, std::byte* out) {
  if constexpr (std::is_same_v<T, Wire>) {
    if (!in.empty()) std::memcpy(out, in.data(), in.size_bytes());
  } else {
    for (size_t i = 0; i < in.size(); ++i) store(out + sizeof(Wire) * i, narrow<Wire>(in[i]));
  }
}

template <class T, Rounding kRounding>
void encode_rounded(Pack pack, std::span<const T> in, int64_t rows, int64_t cols, PackRandom random,
                    std::span<std::byte> out) {
  if (pack == Pack::kFp64) return encode_plain<T, double>(in, out.data());
  if (pack == Pack::kFp32) return encode_plain<T, float>(in, out.data());
  if (pack == Pack::kBf16) return encode_bf16<T, kRounding>(in, random, out.data());
  encode_scaled<T, kRounding>(pack, in, static_cast<size_t>(rows), static_cast<size_t>(cols), random, out);
}

}  // namespace

template <class T>
void encode(Pack pack, std::span<const T> in, int64_t rows, int64_t cols, Rounding rounding, PackRandom random,
            std::span<std::byte> out) {
  if (rounding == Rounding::kNearest) {
    encode_rounded<T, Rounding::kNearest>(pack, in, rows, cols, random, out);
  } else {
    encode_rounded<T, Rounding::kStochastic>(pack, in, rows, cols, random, out);
  }
}

template void encode(Pack, std::span<const float>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
template void encode(Pack, std::span<const double>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);

}  // namespace thinpipe::pack_internal
