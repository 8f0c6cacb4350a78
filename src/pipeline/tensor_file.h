// Tensors to and from safetensors files: the bridge between model and optim, which use tensors, and store, which uses
// bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/safetensors.h"

namespace thinpipe {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

Status save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                    const SafetensorsMetadata& metadata = {});

// A copy on the CPU, in the file's type.
Result<at::Tensor> tensor_from(const SafetensorsFile& file, const std::string& name);

}  // namespace thinpipe
