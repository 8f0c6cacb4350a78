// The JSON files of a Hugging Face folder: config.json and model.safetensors.index.json, read from foreign folders and
// written into ours. The input may be hostile: accepted sizes can be multiplied without overflow, and describe nothing
// but a plain LLaMA.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "models/llama_shape.h"
#include "store/safetensors.h"

namespace thinpipe {

struct HfConfig {
  LlamaShape shape;
  std::optional<int64_t> bos;  // below vocab
  std::optional<int64_t> eos;  // the first one if the file lists several
  bool tied = false;           // the head is the embedding
  // The dtype that the file names; nothing if it names none, or one other than these four.
  std::optional<Dtype> dtype;  // F64, F32, F16 or BF16

  bool operator==(const HfConfig&) const = default;
};

// Ignores keys that do not matter for a plain LLaMA. Refuses a key that makes it a different model, and says why.
// Errors begin with `name`.
Result<HfConfig> parse_hf_config(std::string_view text, std::string_view name);

// parse_hf_config() reads it back unchanged if check_llama_shape() accepts the shape and it has no token tables. With
// tables, the file names the classes of modeling_thinpipe.py.
std::string hf_config_text(const HfConfig& config);

using HfWeightMap = std::map<std::string, std::string>;  // tensor -> file

// The index: which tensor is in which file. File names are plain names in this folder that end in ".safetensors".
// Errors begin with `name`.
Result<HfWeightMap> parse_hf_index(std::string_view text, std::string_view name);
std::string hf_index_text(const HfWeightMap& files, uint64_t total_bytes);

}  // namespace thinpipe
