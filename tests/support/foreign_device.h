// A device that is not the CPU, for tests on machines without a GPU. Its tensors live at addresses that no instruction
// may touch, as a GPU's do, so code that reads them from the host crashes. An operation whose tensors are on different
// devices throws, as it does with CUDA. The numbers are computed by libtorch's CPU operations, so they are those of the
// ATen path on a CPU; speed, streams and CUDA's own kernels are not tested by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace thinpipe::test {

inline const std::string kForeignDevice = "privateuseone";

inline at::Device foreign_device() { return at::Device(kForeignDevice + ":0"); }

inline bool is_foreign(const at::Tensor& tensor) { return tensor.device().type() == at::DeviceType::PrivateUse1; }

// How many operations have run on it.
int64_t foreign_operations();

}  // namespace thinpipe::test
