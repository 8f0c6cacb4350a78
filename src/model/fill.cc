#include "model/fill.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/result.h"

namespace thinpipe {
namespace {

at::Tensor host_doubles(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions().dtype(at::kDouble).device(at::kCPU));
}

}  // namespace

at::Tensor fill_random(const CounterRng& rng, at::IntArrayRef shape, double std, const at::TensorOptions& options) {
  const auto host = host_doubles(shape);
  rng.fill_unit_variance(0, {host.data_ptr<double>(), static_cast<size_t>(host.numel())});
  return host.mul_(std).to(options.device(), options.dtype().toScalarType());
}

at::Tensor fill_random_rows(uint64_t seed, uint64_t first_stream, const at::Tensor& ids, int64_t width, double std,
                            const at::TensorOptions& options) {
  const auto wanted = ids.cpu().contiguous();
  const auto host = host_doubles({wanted.numel(), width});
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    const CounterRng row(seed, first_stream + static_cast<uint64_t>(wanted.data_ptr<int64_t>()[i]));
    row.fill_unit_variance(0, {host.data_ptr<double>() + i * width, static_cast<size_t>(width)});
  }
  return host.mul_(std).to(options.device(), options.dtype().toScalarType());
}

at::Tensor ids_tensor(std::span<const int32_t> ids, const at::TensorOptions& options) {
  const auto host =
      at::empty({static_cast<int64_t>(ids.size())}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  std::copy(ids.begin(), ids.end(), host.data_ptr<int64_t>());
  return host.to(options.device());
}

at::Tensor doubles_tensor(std::span<const double> values) {
  auto host = host_doubles({static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), host.data_ptr<double>());
  return host;
}

at::Tensor floats_tensor(std::span<const float> values, at::IntArrayRef shape) {
  auto host = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
  TP_CHECK(host.numel() == static_cast<int64_t>(values.size()), "{} values for a tensor of {}", values.size(),
           host.numel());
  std::copy(values.begin(), values.end(), host.data_ptr<float>());
  return host;
}

std::vector<float> floats_of(const at::Tensor& tensor) {
  const auto host = tensor.to(at::kCPU, at::kFloat).contiguous();
  return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
}

std::string_view tensor_bytes_of(const at::Tensor& tensor) {
  TP_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "needs a contiguous tensor on the CPU");
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace thinpipe
