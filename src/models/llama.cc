#include "models/llama.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "model/fill.h"
#include "model/fixed_table.h"
#include "model/products.h"
#include "model/stage.h"
#include "model/subspace_side.h"

namespace thinpipe {
namespace {

// "model.layers.3.mlp.up_proj.weight" is "mlp.up_proj" of block 3; -1 and the whole name if it is not in a block.
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

// A trained model as the matrices of the merged model, in float64.
class Merged {
 public:
  explicit Merged(const ModelFiles& files) : files_(files), config_(files.config.model) {
    if (!config_.is_subspace()) return;
    // Rounded to the run's type, as the model used it.
    u_ = files.parameter("basis").take().to(storage_type(files.config.train.precision)).to(at::kDouble);
  }

  at::Tensor embedding() const {
    if (!config_.is_subspace()) return parameter("embedding");
    const auto e = parameter("embedding_coordinates");
    // The tables of trained anchors contain T_fixed or replace it. In place, because it is the model's largest tensor.
    return config_.subspace.anchors == Anchors::kStage ? e.mm(u_.t()) : t_fixed().addmm_(e, u_.t());
  }

  // The trained table of this name, "anchors.0" or "previous.0": (V, d).
  at::Tensor trained_table(const std::string& name) const {
    auto rows = parameter(name);
    if (config_.subspace.anchor_rank == 0) return rows;
    const auto product = rows.mm(parameter(anchor_map_name(name)));
    return name.starts_with("anchors.") ? t_fixed() + product : product;
  }

  // W_p1 or W_p2: (inputs, d).
  at::Tensor output(int64_t block, int number) const {
    if (block >= config_.first_dense_block()) return parameter(fmt::format("blocks.{}.wp{}", block, number));
    return parameter(fmt::format("blocks.{}.a{}", block, number)).mm(u_.t());
  }

  at::Tensor parameter(const std::string& name) const { return files_.parameter(name).take().to(at::kDouble); }

 private:
  // A new tensor.
  at::Tensor t_fixed() const {
    // on the CPU: tensors of files are there
    const auto options = at::TensorOptions().dtype(storage_type(files_.config.train.precision));
    const auto fixed = files_.table.defined() ? FixedTable(files_.table, options)
                                              : FixedTable(files_.config.train.seed, files_.vocab(), config_.d,
                                                           config_.subspace.anchor_std, options);
    return fixed.whole().to(at::kDouble);
  }

  const ModelFiles& files_;
  const ModelConfig& config_;
  at::Tensor u_;  // (d, k)
};

at::Tensor merged_tensor(const Merged& merged, const LlamaShape& shape, const std::string& name) {
  if (name == "model.embed_tokens.weight") return merged.embedding();
  if (name == "model.norm.weight") return merged.parameter("final_norm");
  if (name == "lm_head.weight") return merged.parameter("head").t();
  if (name.starts_with("model.anchors.") || name.starts_with("model.previous.")) {
    constexpr std::string_view kFront = "model.", kBack = ".weight";  // around our own name, "anchors.0"
    return merged.trained_table(name.substr(kFront.size(), name.size() - kFront.size() - kBack.size()));
  }
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

constexpr const char* kOnlyHere = "Other programs do not support this, so the model can only be used with thinpipe";

void refuse(std::string_view what, std::string_view why, std::string_view instead = kOnlyHere) {
  throw UserError(fmt::format("this model is not a plain LLaMA: {}; {}. {}", what, why, instead));
}

std::string output_name(int64_t block, int number) { return fmt::format("blocks.{}.wp{}", block, number); }

class Importer {
 public:
  Importer(const LlamaShape& shape, const LlamaValues& values, const ModelConfig& model)
      : shape_(shape), values_(values), model_(model) {}

  Result<ImportedModel> run() {
    TRY(take_blocks());
    if (model_.is_subspace()) {
      TRY(project_outputs());
      TRY(divide_embedding());
    } else {
      TRY(take("embedding"));
    }
    for (const char* name : {"final_norm", "head"}) TRY(take(name));
    return std::move(imported_);
  }

 private:
  Result<at::Tensor> read(const std::string& name) { return dense_parameter(shape_, values_, name); }

  Status take(const std::string& name) {
    const auto value = TRY(read(name));
    imported_.parameters.emplace_back(name, value.contiguous());
    return {};
  }

  // The blocks, except the output projections that are to be projected.
  Status take_blocks() {
    for (int64_t block = 0; block < shape_.blocks; ++block) {
      for (const char* name : {"attn_norm", "wqkv", "mlp_norm", "wgu"}) {
        TRY(take(fmt::format("blocks.{}.{}", block, name)));
      }
      for (int number = 1; number <= 2 && block >= model_.first_dense_block(); ++number) {
        TRY(take(output_name(block, number)));
      }
    }
    return {};
  }

  // The right singular vectors of all W_p, stacked, are the eigenvectors of the sum of W_p^T W_p. That is (d, d) for
  // any number of matrices, and only one of them is in memory.
  Status project_outputs() {
    const auto options = at::TensorOptions().dtype(at::kDouble);  // on the CPU: tensors of files are there
    auto gram = at::zeros({shape_.d, shape_.d}, options);
    TRY(for_each_output([&](int64_t, int, const at::Tensor& w) { gram.addmm_(w.t(), w); }));
    // Ascending eigenvalues: the last k are the largest.
    const auto vectors = std::get<1>(at::linalg_eigh(gram));
    const int64_t k = model_.subspace.rank;
    imported_.basis = vectors.narrow(1, shape_.d - k, k).flip(1).contiguous();
    double all = 0, inside = 0;
    TRY(for_each_output([&](int64_t block, int number, const at::Tensor& w) {
      const auto a = w.mm(imported_.basis);
      const double own = w.square().sum().item<double>(), kept = a.square().sum().item<double>();
      all += own;
      inside += kept;
      imported_.outputs.push_back({output_name(block, number), own > 0 ? kept / own : 1.0});
      imported_.parameters.emplace_back(fmt::format("blocks.{}.a{}", block, number), a.to(at::kFloat));
    }));
    imported_.energy_lost = all > 0 ? 1 - inside / all : 0.0;
    return {};
  }

  template <class Visit>
  Status for_each_output(const Visit& visit) {
    for (int64_t block = 0; block < model_.first_dense_block(); ++block) {
      for (int number = 1; number <= 2; ++number) {
        const auto value = TRY(read(output_name(block, number)));
        visit(block, number, value.to(at::kDouble));
      }
    }
    return {};
  }

  // embedding = T_fixed + E U^T with E = embedding U; exact but for rounding to float32.
  Status divide_embedding() {
    const auto value = TRY(read("embedding"));
    const auto embedding = value.to(at::kDouble);
    const auto e = embedding.mm(imported_.basis).to(at::kFloat);
    imported_.parameters.emplace_back("embedding_coordinates", e);
    // Uses the rounded E, so that the table compensates for the rounding.
    imported_.table = (embedding - e.to(at::kDouble).mm(imported_.basis.t())).to(at::kFloat);
    // Trained anchors start so that they change nothing.
    const auto fixed = FixedTable(imported_.table, imported_.table.options());
    for (const auto& spec : model_spec(model_, shape_.vocab, whole_model(model_))) {
      if (!is_anchor_unit(spec.unit)) continue;
      imported_.parameters.emplace_back(spec.name, first_value(spec, /*seed=*/0, &fixed, imported_.table.options()));
    }
    return {};
  }

  const LlamaShape& shape_;
  const LlamaValues& values_;
  const ModelConfig& model_;
  ImportedModel imported_;
};

}  // namespace

LlamaShape merged_shape(const RunConfig& config) {
  const auto& model = config.model;
  if (model.positions != Positions::kRope) {
    refuse(fmt::format("model.positions = \"{}\"", to_string(model.positions)), "a LLaMA's positions are \"rope\"");
  }
  if (model.qk_norm) refuse("model.qk_norm = true", "a LLaMA does not normalise queries and keys");
  LlamaShape shape{config.data.vocab,    model.d,         model.blocks,  model.heads, model.kv_heads, model.mlp_width,
                   config.train.seq_len, model.rope_base, model.norm_eps};
  if (model.is_subspace() && model.subspace.anchors == Anchors::kStage) {
    shape.tables = TokenTables{{}, model.subspace.previous == Previous::kTable, model.first_dense_block()};
    for (const auto& group : anchor_groups(model, whole_model(model)))
      shape.tables->first_blocks.push_back(group.first);
  }
  return shape;
}

LlamaShape plain_shape(const RunConfig& config) {
  auto shape = merged_shape(config);
  if (shape.tables) {
    refuse("subspace.anchors = \"stage\"", "a LLaMA adds a token's row only once, at the embedding",
           "llama.cpp cannot use it. Export it with --format hf, which adds the code that transformers needs for it, "
           "or train a model with model.recipe = \"llama\"");
  }
  return shape;
}

std::string export_limit(const RunConfig& config) {
  try {
    (void)plain_shape(config);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

LlamaValues merged_values(const ModelFiles& files) {
  const auto shape = merged_shape(files.config);
  const auto merged = std::make_shared<const Merged>(files);
  return [shape, merged](const std::string& name) -> Result<std::vector<float>> {
    return floats_of(merged_tensor(*merged, shape, name));
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

Result<ImportedModel> import_llama(const LlamaShape& shape, const LlamaValues& values, const ModelConfig& model) {
  return Importer(shape, values, model).run();
}

}  // namespace thinpipe
