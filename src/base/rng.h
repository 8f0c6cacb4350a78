// Random numbers as a pure function of where they are used (docs/rng.md): Philox4x32-10 keyed by a seed, counted by a
// stream and an index. No state, no libm, only integer operations and exactly rounded +, *: the same bits on every
// machine, in any order, from any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thinpipe {

// One Philox4x32-10 block (Salmon et al., SC'11).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// 64-bit FNV-1a: turns a name ("blocks.3.wqkv") into a stream number.
uint64_t stream_of(std::string_view name);

// The values of one (seed, stream): element i of the sequence is a function of (seed, stream, i) alone.
class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  CounterRng(uint64_t seed, std::string_view name) : CounterRng(seed, stream_of(name)) {}

  uint32_t bits32(uint64_t index) const;
  uint64_t bits64(uint64_t index) const;
  // Uniform on [0, 1): a multiple of 2^-32, exact.
  double uniform(uint64_t index) const { return static_cast<double>(bits32(index)) * 0x1p-32; }
  // Uniform on the 2^32 midpoints of (-sqrt 3, sqrt 3): mean 0, variance 1 to within 2^-32. Rounded once, to double.
  double unit_variance(uint64_t index) const { return unit_variance_of(bits32(index)); }

  // out[j] = bits32(first + j), several times faster than one by one.
  void fill_bits32(uint64_t first, std::span<uint32_t> out) const;
  // out[j] = unit_variance(first + j), four at a time.
  void fill_unit_variance(uint64_t first, std::span<double> out) const;

 private:
  static double unit_variance_of(uint32_t bits);
  std::array<uint32_t, 4> block(uint64_t number) const;

  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace thinpipe
