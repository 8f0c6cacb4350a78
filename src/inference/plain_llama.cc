#include "inference/plain_llama.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "model/products.h"
#include "subspace/fixed_table.h"
#include "tensor/fill.h"

namespace thinpipe {
namespace {

// "model.layers.3.mlp.up_proj.weight" is block 3's "mlp.up_proj"; -1 and the whole name for what is in no block.
std::pair<int64_t, std::string_view> split_name(std::string_view name, std::string_view front, std::string_view back) {
  if (!name.starts_with(front) || !name.ends_with(back)) return {-1, name};
  name.remove_prefix(front.size());
  name.remove_suffix(back.size());
  int64_t block = -1;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), block);
  if (code != std::errc() || end == name.data() + name.size() || *end != '.') return {-1, name};
  name.remove_prefix(static_cast<size_t>(end - name.data()) + 1);
  return {block, name};
}

// A trained model as the matrices of the dense model it is, in float64.
class Merged {
 public:
  explicit Merged(const ModelFiles& files) : files_(files), config_(files.config.model) {
    if (!config_.is_subspace()) return;
    // As the model used it: rounded to the run's type.
    u_ = files.parameter("basis").take().to(storage_type(files.config.train.precision)).to(at::kDouble);
  }

  at::Tensor embedding() const {
    if (!config_.is_subspace()) return parameter("embedding");
    const auto type = at::TensorOptions().dtype(storage_type(files_.config.train.precision));
    const auto fixed = files_.table.defined() ? FixedTable(files_.table, type)
                                              : FixedTable(files_.config.train.seed, files_.vocab(), config_.d,
                                                           config_.subspace.anchor_std, type);
    return fixed.whole().to(at::kDouble).addmm(parameter("embedding_coordinates"), u_.t());
  }

  // W_p1 or W_p2: (inputs, d).
  at::Tensor output(int64_t block, int number) const {
    if (block >= config_.first_dense_block()) return parameter(fmt::format("blocks.{}.wp{}", block, number));
    return parameter(fmt::format("blocks.{}.a{}", block, number)).mm(u_.t());
  }

  at::Tensor parameter(const std::string& name) const { return files_.parameter(name).take().to(at::kDouble); }

 private:
  const ModelFiles& files_;
  const ModelConfig& config_;
  at::Tensor u_;  // (d, k)
};

at::Tensor plain_tensor(const Merged& merged, const LlamaShape& shape, const std::string& name) {
  if (name == "model.embed_tokens.weight") return merged.embedding();
  if (name == "model.norm.weight") return merged.parameter("final_norm");
  if (name == "lm_head.weight") return merged.parameter("head").t();
  const auto [block, part] = split_name(name, "model.layers.", ".weight");
  const auto ours = [block = block](const char* what) { return fmt::format("blocks.{}.{}", block, what); };
  const int64_t q = shape.heads * shape.head_dim(), kv = shape.kv_heads * shape.head_dim(), m = shape.mlp_width;
  const auto columns = [&](const char* what, int64_t first, int64_t count) {
    return merged.parameter(ours(what)).narrow(1, first, count).t();
  };
  if (part == "input_layernorm") return merged.parameter(ours("attn_norm"));
  if (part == "post_attention_layernorm") return merged.parameter(ours("mlp_norm"));
  if (part == "self_attn.q_proj") return columns("wqkv", 0, q);
  if (part == "self_attn.k_proj") return columns("wqkv", q, kv);
  if (part == "self_attn.v_proj") return columns("wqkv", q + kv, kv);
  if (part == "self_attn.o_proj") return merged.output(block, 1).t();
  if (part == "mlp.gate_proj") return columns("wgu", 0, m);
  if (part == "mlp.up_proj") return columns("wgu", m, m);
  if (part == "mlp.down_proj") return merged.output(block, 2).t();
  TP_CHECK(false, "a LLaMA has no tensor {}", name);
}

void refuse(std::string_view what, std::string_view why) {
  throw UserError(
      fmt::format("this model is not a plain LLaMA: {}; {}. Other programs have no name for it, so it can "
                  "be used with thinpipe alone",
                  what, why));
}

}  // namespace

LlamaShape plain_shape(const RunConfig& config) {
  const auto& model = config.model;
  if (model.positions != Positions::kRope) {
    refuse(fmt::format("model.positions = \"{}\"", to_string(model.positions)), "a LLaMA's positions are \"rope\"");
  }
  if (model.qk_norm) refuse("model.qk_norm = true", "a LLaMA does not normalise queries and keys");
  if (model.is_subspace() && model.subspace.norm == NormForm::kSplit) {
    refuse("subspace.norm = \"split\"", "a LLaMA normalises the stream as a whole, as norm = \"joint\" does");
  }
  if (model.is_subspace() && model.subspace.anchors == Anchors::kStage) {
    refuse("subspace.anchors = \"stage\"",
           "a LLaMA adds a token's row once, at the embedding, as anchors = \"fixed\" does");
  }
  return {config.data.vocab,    model.d,         model.blocks,  model.heads, model.kv_heads, model.mlp_width,
          config.train.seq_len, model.rope_base, model.norm_eps};
}

LlamaValues plain_values(const ModelFiles& files) {
  const auto shape = plain_shape(files.config);
  const auto merged = std::make_shared<const Merged>(files);
  return [shape, merged](const std::string& name) -> Result<std::vector<float>> {
    return floats_of(plain_tensor(*merged, shape, name));
  };
}

ModelConfig dense_model_of(const LlamaShape& shape) {
  ModelConfig model;
  model.mode = ModelMode::kDense;
  model.d = shape.d;
  model.blocks = shape.blocks;
  model.heads = shape.heads;
  model.kv_heads = shape.kv_heads;
  model.mlp_width = shape.mlp_width;
  model.rope_base = shape.rope_base;
  model.norm_eps = shape.norm_eps;
  return model;
}

Result<at::Tensor> dense_parameter(const LlamaShape& shape, const LlamaValues& values, const std::string& name) {
  const auto tensors = llama_tensors(shape);
  const auto read = [&](const std::string& plain) -> at::Tensor {
    for (const auto& tensor : tensors) {
      if (tensor.name == plain) return floats_tensor(values(plain).take(), tensor.shape);
    }
    TP_CHECK(false, "a LLaMA has no tensor {}", plain);
  };
  if (name == "embedding") return read("model.embed_tokens.weight");
  if (name == "final_norm") return read("model.norm.weight");
  if (name == "head") return read("lm_head.weight").t();
  const auto [block, part] = split_name(name, "blocks.", "");
  const auto of_block = [&, block = block](const char* what) {
    return read(fmt::format("model.layers.{}.{}.weight", block, what));
  };
  if (part == "attn_norm") return of_block("input_layernorm");
  if (part == "mlp_norm") return of_block("post_attention_layernorm");
  if (part == "wqkv") {
    return at::cat({of_block("self_attn.q_proj"), of_block("self_attn.k_proj"), of_block("self_attn.v_proj")}).t();
  }
  if (part == "wp1") return of_block("self_attn.o_proj").t();
  if (part == "wgu") return at::cat({of_block("mlp.gate_proj"), of_block("mlp.up_proj")}).t();
  if (part == "wp2") return of_block("mlp.down_proj").t();
  return Error{fmt::format("a plain LLaMA has no '{}'", name)};
}

}  // namespace thinpipe
