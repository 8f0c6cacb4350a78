// Tensors from and to host memory: the places outside the fused kernels where raw pointers are needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "base/rng.h"

namespace thinpipe {

// Element i = std * rng.unit_variance(i), rounded from double to the type asked for: the same bits on every device.
at::Tensor fill_random(const CounterRng& rng, at::IntArrayRef shape, double std, const at::TensorOptions& options);

// (count) int64, a copy of the host's ids.
at::Tensor ids_tensor(std::span<const int32_t> ids, const at::TensorOptions& options);

}  // namespace thinpipe
