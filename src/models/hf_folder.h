// A LLaMA as a folder in Hugging Face's layout: config.json, safetensors in one file or in shards with an index, and
// sentencepiece's tokenizer.model. transformers can open what is written; for a model with token tables, the folder
// also has the code, modeling_thinpipe.py. A folder to read may come from anywhere, so everything in it is checked
// (docs/export.md). One tensor is in memory at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "models/hf_json.h"
#include "models/llama_shape.h"
#include "store/safetensors.h"
#include "text/tokenizer.h"

namespace thinpipe {

struct HfOptions {
  Dtype dtype = Dtype::kF32;  // or kF16, kBf16
  // Maximum size of the tensors in one file; a single larger tensor gets a file of its own.
  uint64_t max_shard_bytes = 5'000'000'000;
};

// The folder appears complete or not at all. Refuses a path where something other than an empty folder exists. `values`
// is called once per tensor, in the order of llama_tensors(); its first error, or a value that the dtype cannot hold,
// ends the writing.
Status write_hf_folder(const std::filesystem::path& path, const LlamaShape& shape, const Tokenizer& tokenizer,
                       const LlamaValues& values, const HfOptions& options = {});

// A folder whose tensors are exactly those of its config, checked by name, shape and dtype before anything is read.
class HfFolder {
 public:
  // The files are mapped and must not be truncated while this object exists.
  static Result<HfFolder> open(const std::filesystem::path& path);

  const HfConfig& config() const { return config_; }
  // Takes a name from llama_tensors(config().shape); the tensor is stored as F64, F32, F16 or BF16. The head of a tied
  // model is its embedding. An error names a tensor that contains something other than finite floats.
  Result<std::vector<float>> values(const std::string& name) const;
  // From tokenizer.model; it may have fewer pieces than the model has tokens, never more.
  Result<Tokenizer> tokenizer() const;

 private:
  HfFolder(std::filesystem::path path, HfConfig config) : path_(std::move(path)), config_(std::move(config)) {}

  Status open_files();
  Status check_tensors() const;

  std::filesystem::path path_;
  HfConfig config_;
  std::map<std::string, SafetensorsFile> files_;  // by file name
  std::map<std::string, std::string> places_;     // tensor -> file name
};

}  // namespace thinpipe
