// One model file out of the stages' checkpoint files. Bytes are copied as they lie: whoever merges holds no tensors.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {

// Writes the tensors whose names start with `prefix`, without it, in the order of the files and of their bytes; then
// "basis.u" of the first file, if it has one, as "basis". Refused: a name that would stand twice, files without any
// such tensor. `out` may be one of the stage files.
Status merge_safetensors(const std::vector<std::filesystem::path>& stage_files, std::string_view prefix,
                         const std::filesystem::path& out, const SafetensorsMetadata& metadata);

}  // namespace thinpipe
