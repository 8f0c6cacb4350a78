// Stochastic rounding of float32 numbers to bf16, for moments that are kept in bf16. A number between two neighbours in
// bf16 becomes the upper one with the probability that keeps its mean, so that changes far below bf16's precision add
// up over the steps instead of vanishing. The random bits are a function of where the number stands (docs/rng.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/rng.h"

namespace thinpipe {

// Element i of `out` is element i of `values`, rounded with the random bits of element first + i (rounding_bits()).
// values: (n) float32; out: (n) bf16, both contiguous. Infinities stay, and what is not a number stays so.
void round_stochastically(const at::Tensor& values, const CounterRng& rng, uint64_t first, const at::Tensor& out);

// The random bits of element i: 16 of the 32 bits that two neighbouring elements share.
inline uint32_t rounding_bits(uint32_t word, uint64_t element) { return element % 2 == 0 ? word & 0xffff : word >> 16; }

namespace aten_ops {

// The same in tensor algebra, for other devices, and the kernel's twin in tests.
void round_stochastically(const at::Tensor& values, const CounterRng& rng, uint64_t first, const at::Tensor& out);

}  // namespace aten_ops
}  // namespace thinpipe
