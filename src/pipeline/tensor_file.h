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

// Whether the file has this tensor with the shape and type of `like`; the error says what it has instead.
Status check_tensor(const SafetensorsFile& file, const std::string& name, const at::Tensor& like);
// Copies a tensor that check_tensor() accepted into `target`, without another copy on the way to a contiguous tensor on
// the CPU, and gives the memory of the file's bytes back.
void copy_tensor(const SafetensorsFile& file, const std::string& name, at::Tensor target);

// A copy on the CPU, in the file's type.
Result<at::Tensor> tensor_from(const SafetensorsFile& file, const std::string& name);

}  // namespace thinpipe
