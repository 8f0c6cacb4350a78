// A LLaMA as other programs know it: its sizes, the names and shapes of its tensors (Hugging Face's, matrices (out,
// in)), and its values, one tensor at a time. The writers of Hugging Face folders and GGUF files take this form; the
// reader of such folders returns it. Needs no tensor library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace thinpipe {

// What a model with `anchors = "stage"` (METHOD 5) has besides a LLaMA. Before the first dense block, the blocks of a
// group read r + e instead of the stream r, where e is the token's row of the group's table. Before the first dense
// block itself, e of the last group is added to r. modeling_thinpipe.py is such a model in full.
struct TokenTables {
  std::vector<int64_t> first_blocks;  // of each group; ascending from 0, none above first_dense_block
  bool previous = false;              // e has a second part: the previous token's row of a second table of the group
  int64_t first_dense_block = 0;      // L if there is none: e is then added before the last norm

  bool operator==(const TokenTables&) const = default;
};

struct LlamaShape {
  int64_t vocab = 0;      // V
  int64_t d = 0;          // hidden_size
  int64_t blocks = 0;     // L
  int64_t heads = 0;      // divides d; heads are d / heads wide, an even number
  int64_t kv_heads = 0;   // divides heads
  int64_t mlp_width = 0;  // intermediate_size
  int64_t context = 0;    // longest sequence it was trained on: max_position_embeddings
  double rope_base = 10000.0;
  double norm_eps = 1e-5;
  std::optional<TokenTables> tables = {};  // nothing in a plain LLaMA

  int64_t head_dim() const { return d / heads; }
  bool operator==(const LlamaShape&) const = default;
};

// Limits for reading and writing. With them, every tensor and the whole model have fewer than 2^62 bytes.
constexpr int64_t kMaxLlamaVocab = int64_t{1} << 24;
constexpr int64_t kMaxLlamaWidth = int64_t{1} << 20;
constexpr int64_t kMaxLlamaMlpWidth = int64_t{1} << 24;
constexpr int64_t kMaxLlamaBlocks = 4096;
constexpr int64_t kMaxLlamaContext = (int64_t{1} << 31) - 1;

// Whether such a model is possible and a file can describe it. Errors use the keys of config.json.
Status check_llama_shape(const LlamaShape& shape);
// Checked by every writer first: the shape, and that the tokenizer has no more pieces than the model has tokens.
Status check_llama(const LlamaShape& shape, const Tokenizer& tokenizer);

struct LlamaTensor {
  std::string name;            // "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // (out, in), or (d) of a norm
};

// Every tensor of LlamaForCausalLM with an untied head, in the order of the model: embedding, blocks, norm, head. The
// tables of TokenTables, model.anchors.G and model.previous.G of group G, follow the embedding.
std::vector<LlamaTensor> llama_tensors(const LlamaShape& shape);

// Returns a tensor's values, row-major, by its name in llama_tensors(). Called once per tensor, so that only one must
// be in memory.
using LlamaValues = std::function<Result<std::vector<float>>(const std::string& name)>;

}  // namespace thinpipe
