#include "optim/kernels/bf16_rounding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/result.h"

namespace thinpipe {
namespace {

constexpr uint32_t kExponent = 0x7f800000, kQuiet = 0x00400000;

// A float32 is a bf16 with 16 more bits. Adding a random number below 2^16 carries into the bf16 with the probability
// (those bits) / 2^16, which is where the number lies between its neighbours, also across powers of two.
inline uint16_t rounded(uint32_t bits, uint32_t random) {
  if ((bits & kExponent) != kExponent) return static_cast<uint16_t>((bits + random) >> 16);
  const bool not_a_number = (bits & ~(kExponent | 0x80000000)) != 0;
  return static_cast<uint16_t>((not_a_number ? bits | kQuiet : bits) >> 16);
}

void round_piece(const float* values, const CounterRng& rng, uint64_t first, int64_t count, uint16_t* out) {
  constexpr int64_t kAtOnce = 1024;
  std::array<uint32_t, kAtOnce / 2> words;
  std::array<uint32_t, kAtOnce> bits;
  int64_t done = 0;
  const auto single = [&] {
    std::memcpy(bits.data(), values + done, sizeof(float));
    const uint64_t element = first + static_cast<uint64_t>(done);
    out[done++] = rounded(bits[0], rounding_bits(rng.bits32(element / 2), element));
  };
  if (first % 2 != 0 && count > 0) single();
  for (; count - done >= 2;) {
    const int64_t now = std::min(kAtOnce, (count - done) / 2 * 2);
    rng.fill_bits32((first + static_cast<uint64_t>(done)) / 2, {words.data(), static_cast<size_t>(now / 2)});
    std::memcpy(bits.data(), values + done, static_cast<size_t>(now) * sizeof(float));
    for (int64_t i = 0; i < now / 2; ++i) {
      const uint32_t word = words[static_cast<size_t>(i)];
      out[done + 2 * i] = rounded(bits[static_cast<size_t>(2 * i)], word & 0xffff);
      out[done + 2 * i + 1] = rounded(bits[static_cast<size_t>(2 * i + 1)], word >> 16);
    }
    done += now;
  }
  if (done < count) single();
}

}  // namespace

void round_stochastically(const at::Tensor& values, const CounterRng& rng, uint64_t first, const at::Tensor& out) {
  if (!values.is_cpu()) return aten_ops::round_stochastically(values, rng, first, out);
  TP_CHECK(values.scalar_type() == at::kFloat && out.scalar_type() == at::kBFloat16 && values.is_contiguous() &&
               out.is_contiguous() && values.numel() == out.numel(),
           "cannot round {} numbers of {} to {} of {}", values.numel(), at::toString(values.scalar_type()), out.numel(),
           at::toString(out.scalar_type()));
  constexpr int64_t kNumbersPerTask = 1 << 15;
  const auto* in = values.data_ptr<float>();
  auto* rounded_out = reinterpret_cast<uint16_t*>(out.data_ptr<at::BFloat16>());
  at::parallel_for(0, values.numel(), kNumbersPerTask, [&](int64_t begin, int64_t end) {
    round_piece(in + begin, rng, first + static_cast<uint64_t>(begin), end - begin, rounded_out + begin);
  });
}

namespace aten_ops {

void round_stochastically(const at::Tensor& values, const CounterRng& rng, uint64_t first, const at::Tensor& out) {
  const auto count = static_cast<uint64_t>(values.numel());
  if (count == 0) return;
  std::vector<uint32_t> words(static_cast<size_t>((first + count - 1) / 2 - first / 2 + 1));
  rng.fill_bits32(first / 2, words);
  // on the CPU: the numbers are made there
  auto random = at::empty({values.numel()}, at::TensorOptions().dtype(at::kInt));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t element = first + i;
    random.data_ptr<int32_t>()[i] = static_cast<int32_t>(rounding_bits(words[element / 2 - first / 2], element));
  }
  const auto bits = values.view(at::kInt);
  const auto up = bits.add(random.to(values.device())).bitwise_and(at::Scalar(static_cast<int32_t>(0xffff0000)));
  out.copy_(at::where(at::isfinite(values), up.view(at::kFloat), values));
}

}  // namespace aten_ops
}  // namespace thinpipe
