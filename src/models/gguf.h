// Writes a LLaMA as a GGUF file, the format of llama.cpp and programs built on it: weights, sizes and tokenizer in one
// file (docs/export.md). Version 3, little-endian: keys and values, the tensors' names, shapes and offsets, then their
// bytes, each at a multiple of 32. One tensor is in memory at a time.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "models/llama_shape.h"
#include "text/tokenizer.h"

namespace thinpipe {

// Type of the matrices; the gains of norms are always 32-bit floats.
enum class GgufType { kF32, kF16, kBf16, kQ8_0 };

struct GgufOptions {
  // With q8_0, a matrix with rows that are not a multiple of 32 wide is stored as f16.
  GgufType type = GgufType::kF16;
  std::string name = "thinpipe";  // general.name, for people
};

// Returns an error with the reason if llama.cpp would give different ids than sentencepiece for some text.
Status check_gguf_tokenizer(const Tokenizer& tokenizer);

// `shape` has no token tables. The file appears complete or not at all. Replaces an existing file and creates missing
// folders. `values` is called once per tensor; its first error, or a value that the type cannot hold, ends the writing.
// Refuses what check_gguf_tokenizer() refuses. The tokenizer may have fewer pieces than the model has tokens: the
// others are written as unused.
Status write_gguf(const std::filesystem::path& path, const LlamaShape& shape, const Tokenizer& tokenizer,
                  const LlamaValues& values, const GgufOptions& options = {});

}  // namespace thinpipe
