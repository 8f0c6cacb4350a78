#include "export/llama.h"

#include <fmt/format.h>

namespace thinpipe {

std::vector<LlamaTensor> llama_tensors(const LlamaShape& shape) {
  const int64_t d = shape.d, q = shape.heads * shape.head_dim(), kv = shape.kv_heads * shape.head_dim();
  std::vector<LlamaTensor> tensors{{"model.embed_tokens.weight", {shape.vocab, d}}};
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
