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

Status check_tensor(const SafetensorsFile& file, const std::string& name, const at::Tensor& like) {
  const auto* entry = file.find(name);
  if (entry == nullptr) return Error{fmt::format("has no tensor '{}'", name)};
  const auto type = scalar_type_of(entry->dtype);
  if (like.sizes() == at::IntArrayRef(entry->shape) && like.scalar_type() == type) return {};
  return Error{fmt::format("tensor '{}' is {} of {}, needs {} of {}", name, c10::str(at::IntArrayRef(entry->shape)),
                           c10::toString(type), c10::str(like.sizes()), c10::toString(like.scalar_type()))};
}

void copy_tensor(const SafetensorsFile& file, const std::string& name, at::Tensor target) {
  const auto* entry = file.find(name);
  TP_CHECK(entry != nullptr && entry->bytes.size() == target.nbytes(), "tensor '{}' was not checked", name);
  if (!target.is_cpu() || !target.is_contiguous()) {
    target.copy_(tensor_from(file, name).take());
  } else if (!entry->bytes.empty()) {
    std::memcpy(target.data_ptr(), entry->bytes.data(), entry->bytes.size());
  }
  file.forget(*entry);
}

Result<at::Tensor> tensor_from(const SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  if (entry == nullptr) return Error{fmt::format("has no tensor '{}'", name)};
  auto tensor = at::empty(entry->shape, at::TensorOptions().dtype(scalar_type_of(entry->dtype)).device(at::kCPU));
  if (!entry->bytes.empty()) std::memcpy(tensor.data_ptr(), entry->bytes.data(), entry->bytes.size());
  return tensor;
}

}  // namespace thinpipe
