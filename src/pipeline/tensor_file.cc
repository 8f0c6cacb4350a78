#include "pipeline/tensor_file.h"

#include <ATen/ATen.h>

#include <cstring>

namespace thinpipe {
namespace {

constexpr std::pair<Dtype, at::ScalarType> kTypes[] = {
    {Dtype::kF64, at::kDouble}, {Dtype::kF32, at::kFloat}, {Dtype::kF16, at::kHalf},  {Dtype::kBf16, at::kBFloat16},
    {Dtype::kI64, at::kLong},   {Dtype::kI32, at::kInt},   {Dtype::kI16, at::kShort}, {Dtype::kI8, at::kChar},
    {Dtype::kU8, at::kByte},    {Dtype::kBool, at::kBool}};

Dtype dtype_of(const at::Tensor& tensor) {
  for (const auto& [dtype, scalar] : kTypes) {
    if (scalar == tensor.scalar_type()) return dtype;
  }
  TP_CHECK(false, "safetensors has no type {}", at::toString(tensor.scalar_type()));
}

at::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [known, scalar] : kTypes) {
    if (known == dtype) return scalar;
  }
  TP_CHECK(false, "no tensor type for {}", dtype_name(dtype));
}

}  // namespace

Status save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                    const SafetensorsMetadata& metadata) {
  std::vector<at::Tensor> host;  // keeps the bytes alive until they are written
  std::vector<SafetensorsTensor> entries;
  for (const auto& [name, tensor] : tensors) {
    host.push_back(tensor.cpu().contiguous());
    const auto& copy = host.back();
    entries.push_back({name,
                       dtype_of(copy),
                       copy.sizes().vec(),
                       {static_cast<const std::byte*>(copy.data_ptr()), static_cast<size_t>(copy.nbytes())}});
  }
  return write_safetensors(path, entries, metadata);
}

Result<at::Tensor> tensor_from(const SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  if (entry == nullptr) return Error{fmt::format("has no tensor '{}'", name)};
  auto tensor = at::empty(entry->shape, at::TensorOptions().dtype(scalar_type_of(entry->dtype)).device(at::kCPU));
  if (!entry->bytes.empty()) std::memcpy(tensor.data_ptr(), entry->bytes.data(), entry->bytes.size());
  return tensor;
}

}  // namespace thinpipe
