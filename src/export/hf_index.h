// model.safetensors.index.json: which tensor is in which of the files. Hostile input. Private to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

using HfWeightMap = std::map<std::string, std::string>;  // tensor -> file

// File names are plain names of this folder that end in ".safetensors". Errors begin with `name`.
Result<HfWeightMap> parse_hf_index(std::string_view text, std::string_view name);
std::string hf_index_text(const HfWeightMap& files, uint64_t total_bytes);

}  // namespace thinpipe
