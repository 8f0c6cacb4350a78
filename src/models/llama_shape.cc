#include "models/llama_shape.h"

#include <fmt/format.h>

namespace thinpipe {
namespace {

// As 32-bit floats, which GGUF uses, these are neither infinite nor zero.
constexpr double kMaxRopeBase = 1e30;
constexpr double kLeastNormEps = 1e-30;

struct Size {
  const char* key;
  int64_t value;
  int64_t most;
};

}  // namespace

Status check_llama_shape(const LlamaShape& shape) {
  const Size sizes[] = {{"vocab_size", shape.vocab, kMaxLlamaVocab},
                        {"hidden_size", shape.d, kMaxLlamaWidth},
                        {"num_hidden_layers", shape.blocks, kMaxLlamaBlocks},
                        {"num_attention_heads", shape.heads, kMaxLlamaWidth},
                        {"num_key_value_heads", shape.kv_heads, kMaxLlamaWidth},
                        {"intermediate_size", shape.mlp_width, kMaxLlamaMlpWidth},
                        {"max_position_embeddings", shape.context, kMaxLlamaContext}};
  for (const auto& [key, value, most] : sizes) {
    if (value >= 1 && value <= most) continue;
    return Error{fmt::format("{} is {}, needs a whole number from 1 to {}", key, value, most)};
  }
  if (shape.d % shape.heads != 0 || shape.head_dim() % 2 != 0) {
    return Error{fmt::format("hidden_size {} cannot be divided into {} heads of an even width", shape.d, shape.heads)};
  }
  if (shape.heads % shape.kv_heads != 0) {
    return Error{
        fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}", shape.heads, shape.kv_heads)};
  }
  // Written so that NaN is refused.
  if (!(shape.norm_eps >= kLeastNormEps && shape.norm_eps <= 1)) {
    return Error{fmt::format("rms_norm_eps is {}, needs a number from {} to 1", shape.norm_eps, kLeastNormEps)};
  }
  if (!(shape.rope_base > 0 && shape.rope_base <= kMaxRopeBase)) {
    return Error{fmt::format("rope_theta is {}, needs a number above 0 and up to {}", shape.rope_base, kMaxRopeBase)};
  }
  return {};
}

Status check_llama(const LlamaShape& shape, const Tokenizer& tokenizer) {
  if (const auto status = check_llama_shape(shape); !status) {
    return Error{fmt::format("the model: {}", status.error().message)};
  }
  if (tokenizer.vocab() <= shape.vocab) return {};
  return Error{
      fmt::format("the tokenizer has {} pieces, but the model has only {} tokens", tokenizer.vocab(), shape.vocab)};
}

std::vector<LlamaTensor> llama_tensors(const LlamaShape& shape) {
  const int64_t d = shape.d, q = shape.heads * shape.head_dim(), kv = shape.kv_heads * shape.head_dim();
  std::vector<LlamaTensor> tensors{{"model.embed_tokens.weight", {shape.vocab, d}}};
  for (size_t group = 0; shape.tables && group < shape.tables->first_blocks.size(); ++group) {
    tensors.push_back({fmt::format("model.anchors.{}.weight", group), {shape.vocab, d}});
    if (shape.tables->previous) tensors.push_back({fmt::format("model.previous.{}.weight", group), {shape.vocab, d}});
  }
  for (int64_t block = 0; block < shape.blocks; ++block) {
    const auto add = [&](const char* name, std::vector<int64_t> sizes) {
      tensors.push_back({fmt::format("model.layers.{}.{}.weight", block, name), std::move(sizes)});
    };
    add("input_layernorm", {d});
    add("self_attn.q_proj", {q, d});
    add("self_attn.k_proj", {kv, d});
    add("self_attn.v_proj", {kv, d});
    add("self_attn.o_proj", {d, q});
    add("post_attention_layernorm", {d});
    add("mlp.gate_proj", {shape.mlp_width, d});
    add("mlp.up_proj", {shape.mlp_width, d});
    add("mlp.down_proj", {d, shape.mlp_width});
  }
  tensors.push_back({"model.norm.weight", {d}});
  tensors.push_back({"lm_head.weight", {shape.vocab, d}});
  return tensors;
}

}  // namespace thinpipe
