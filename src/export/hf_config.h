// config.json of a Hugging Face LLaMA: read from anybody's folder, written into ours. Hostile input; what is read has
// sizes that can be multiplied without overflow, and describes the plain LLaMA of llama.h and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "export/llama.h"

namespace thinpipe {

struct HfConfig {
  LlamaShape shape;
  std::optional<int64_t> bos;  // below vocab
  std::optional<int64_t> eos;  // the first when the file lists several
  bool tied = false;           // the head is the embedding
  // What the file says its values are stored as; nothing if it says nothing, or what is not F64, F32, F16 or BF16.
  std::optional<Dtype> dtype;

  bool operator==(const HfConfig&) const = default;
};

// Bounds of what is read and written. With them every tensor and the whole model have fewer than 2^62 bytes.
constexpr int64_t kMaxLlamaVocab = int64_t{1} << 24;
constexpr int64_t kMaxLlamaWidth = int64_t{1} << 20;
constexpr int64_t kMaxLlamaMlpWidth = int64_t{1} << 24;
constexpr int64_t kMaxLlamaBlocks = 4096;
constexpr int64_t kMaxLlamaContext = (int64_t{1} << 31) - 1;

// Keys that change nothing about a plain LLaMA are passed over; one that makes it another model is refused by name,
// with the reason. `name` is what errors call the file.
Result<HfConfig> parse_hf_config(std::string_view text, std::string_view name);

// What parse_hf_config() reads back as the same, if it describes a possible model.
std::string hf_config_text(const HfConfig& config);

// Whether a file of some kind can describe it: the rules of parse_hf_config(), in the words of config.json.
Status check_llama_shape(const LlamaShape& shape);

}  // namespace thinpipe
