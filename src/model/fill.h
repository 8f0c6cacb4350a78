// Tensors from host memory and back. Outside the kernels, only this file and pipeline/tensor_file.cc use raw pointers
// into tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/rng.h"

namespace thinpipe {

// Element i = std * rng.unit_variance(i), rounded from double to the requested type: the same bits on every device.
at::Tensor fill_random(const CounterRng& rng, at::IntArrayRef shape, double std, const at::TensorOptions& options);

// Row i = std * unit_variance of (seed, first_stream + ids[i]): (n, width).   ids: (n) int64
at::Tensor fill_random_rows(uint64_t seed, uint64_t first_stream, const at::Tensor& ids, int64_t width, double std,
                            const at::TensorOptions& options);

// A copy of these ids: (count) int64.
at::Tensor ids_tensor(std::span<const int32_t> ids, const at::TensorOptions& options);
// (count) float64, a copy, on the CPU.
at::Tensor doubles_tensor(std::span<const double> values);

// A copy of these values with that shape, float32 on the CPU; and the values of any tensor as float32, row-major.
at::Tensor floats_tensor(std::span<const float> values, at::IntArrayRef shape);
std::vector<float> floats_of(const at::Tensor& tensor);

// The bytes of a contiguous tensor on the CPU; valid while the tensor exists.
std::string_view tensor_bytes_of(const at::Tensor& tensor);

}  // namespace thinpipe
