#include "model/kernels/fill.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace thinpipe {

at::Tensor fill_random(const CounterRng& rng, at::IntArrayRef shape, double std, const at::TensorOptions& options) {
  const auto host = at::empty(shape, at::TensorOptions().dtype(at::kDouble).device(at::kCPU));
  rng.fill_unit_variance(0, {host.data_ptr<double>(), static_cast<size_t>(host.numel())});
  return host.mul_(std).to(options.device(), options.dtype().toScalarType());
}

at::Tensor ids_tensor(std::span<const int32_t> ids, const at::TensorOptions& options) {
  const auto host = at::empty({static_cast<int64_t>(ids.size())}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  std::copy(ids.begin(), ids.end(), host.data_ptr<int64_t>());
  return host.to(options.device());
}

}  // namespace thinpipe
