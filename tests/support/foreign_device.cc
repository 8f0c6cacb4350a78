#include "support/foreign_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <vector>

namespace thinpipe::test {
namespace {

std::atomic<int64_t> operations = 0;

// A device's address is the host's with a bit that no valid address of x86-64 or arm64 has set in user space.
constexpr uintptr_t kForeignBit = uintptr_t{1} << 54;

void* swapped(void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) ^ kForeignBit);  // NOLINT
}

c10::Storage make_storage(size_t bytes) {
  void* const host = std::malloc(std::max<size_t>(bytes, 1));  // NOLINT: released by the DataPtr
  c10::DataPtr data(swapped(host), host, std::free, foreign_device());
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, /*resizable=*/false);
}

// The same memory as a tensor on the CPU.
at::Tensor host_view(const at::Tensor& tensor) {
  if (!is_foreign(tensor)) return tensor;
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), options);
  return at::from_blob(swapped(tensor.data_ptr()), tensor.sizes(), tensor.strides(), options);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, c10::optional<at::ScalarType> type,
                         c10::optional<at::Layout>, c10::optional<at::Device>, c10::optional<bool>) {
  const auto meta = c10::scalarTypeToTypeMeta(type.value_or(at::kFloat));
  const size_t bytes = at::detail::computeStorageNbytes(size, stride, meta.itemsize());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(make_storage(bytes),
                                                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

at::Tensor empty(at::IntArrayRef size, c10::optional<at::ScalarType> type, c10::optional<at::Layout> layout,
                 c10::optional<at::Device> device, c10::optional<bool> pinned, c10::optional<at::MemoryFormat>) {
  std::vector<int64_t> stride(size.size());
  int64_t step = 1;
  for (size_t i = size.size(); i-- > 0; step *= std::max<int64_t>(size[i], 1)) stride[i] = step;
  return empty_strided(size, stride, type, layout, device, pinned);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  host_view(to).copy_(host_view(from));
  return to;
}

const at::Tensor& resize_tensor(const at::Tensor& tensor, at::IntArrayRef size, c10::optional<at::MemoryFormat>) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (tensor.sizes() == size) return tensor;
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, tensor.itemsize());
  if (bytes > tensor.storage().nbytes()) impl->set_storage_keep_dtype(make_storage(bytes));
  impl->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  resize_tensor(to, from.sizes(), {});
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) { return host_view(tensor).item(); }

at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef size, at::IntArrayRef stride,
                      c10::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

void check_device(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  // CUDA too takes a number from the CPU.
  TORCH_CHECK(!tensor.defined() || is_foreign(tensor) || tensor.dim() == 0, op.schema().name(),
              ": expected all tensors to be on the same device, but found one on ", tensor.device(), " of sizes ",
              tensor.sizes());
}

// Every operation that has no function of its own above.
void run_on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++operations;
  for (const auto& result : op.schema().returns()) {
    TORCH_CHECK(result.alias_info() == nullptr || result.alias_info()->isWrite(), op.schema().name(),
                " returns a view, which cpu_fallback cannot make: give it a function above");
  }
  for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (argument.isTensor()) check_device(op, argument.toTensor());
    if (argument.isTensorList()) {
      for (const at::Tensor& one : argument.toTensorVector()) check_device(op, one);
    }
  }
  at::native::cpu_fallback(op, stack);
}

}  // namespace

int64_t foreign_operations() { return operations; }

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize_tensor));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_the_host>());
}

}  // namespace thinpipe::test
