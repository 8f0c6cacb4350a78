#include "export/gguf_llama.h"

#include <fmt/format.h>

#include "base/files.h"
#include "export/gguf.h"
#include "export/hf_config.h"
#include "export/json_fields.h"
#include "export/number_bytes.h"
#include "export/q8.h"

namespace thinpipe {
namespace {

// The number that llama.cpp has for what most tensors of the file are.
uint32_t file_type_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return 0;
    case GgufType::kF16:
      return 1;
    case GgufType::kQ8_0:
      return 7;
    case GgufType::kBf16:
      return 32;
  }
  TP_CHECK(false, "GGUF type {}", static_cast<int>(type));
}

GgmlType type_of(const LlamaTensor& tensor, GgufType type) {
  if (tensor.shape.size() == 1) return GgmlType::kF32;
  switch (type) {
    case GgufType::kF32:
      return GgmlType::kF32;
    case GgufType::kF16:
      return GgmlType::kF16;
    case GgufType::kBf16:
      return GgmlType::kBf16;
    case GgufType::kQ8_0:
      return tensor.shape.back() % ggml_block_values(GgmlType::kQ8_0) == 0 ? GgmlType::kQ8_0 : GgmlType::kF16;
  }
  TP_CHECK(false, "GGUF type {}", static_cast<int>(type));
}

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight".
std::string gguf_name(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> kParts[] = {{"model.embed_tokens", "token_embd"},
                                                                      {"model.norm", "output_norm"},
                                                                      {"lm_head", "output"},
                                                                      {"model.layers", "blk"},
                                                                      {"input_layernorm", "attn_norm"},
                                                                      {"self_attn.q_proj", "attn_q"},
                                                                      {"self_attn.k_proj", "attn_k"},
                                                                      {"self_attn.v_proj", "attn_v"},
                                                                      {"self_attn.o_proj", "attn_output"},
                                                                      {"post_attention_layernorm", "ffn_norm"},
                                                                      {"mlp.gate_proj", "ffn_gate"},
                                                                      {"mlp.up_proj", "ffn_up"},
                                                                      {"mlp.down_proj", "ffn_down"}};
  for (const auto& [theirs, gguf] : kParts) {
    if (const size_t at = name.find(theirs); at != std::string::npos) name.replace(at, theirs.size(), gguf);
  }
  return name;
}

// Rows of a head that are rotated together: Hugging Face has i and i + head_dim / 2, llama.cpp 2i and 2i + 1.
std::vector<float> with_neighbouring_pairs(const std::vector<float>& values, const LlamaShape& shape) {
  const auto width = static_cast<size_t>(shape.d), head = static_cast<size_t>(shape.head_dim());
  std::vector<float> moved(values.size());
  for (size_t row = 0; row < values.size() / width; ++row) {
    const size_t i = row % head, to = row - i + (i < head / 2 ? 2 * i : 2 * (i - head / 2) + 1);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(row * width), width,
                moved.begin() + static_cast<ptrdiff_t>(to * width));
  }
  return moved;
}

bool is_rotated(std::string_view name) {
  return name.ends_with("self_attn.q_proj.weight") || name.ends_with("self_attn.k_proj.weight");
}

void add_tokenizer(GgufMetadata& metadata, const Tokenizer& tokenizer, int64_t vocab) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const Piece& piece = tokenizer.piece(id);
    texts.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int32_t>(piece.type) + 1);  // in the same order, from 1
  }
  for (auto id = static_cast<int64_t>(texts.size()); id < vocab; ++id) {
    texts.push_back(fmt::format("[PAD{}]", id));
    scores.push_back(-1000);
    types.push_back(static_cast<int32_t>(PieceType::kUnused) + 1);
  }
  metadata.add_text("tokenizer.ggml.model", "llama");
  metadata.add_text("tokenizer.ggml.pre", "default");
  metadata.add_texts("tokenizer.ggml.tokens", texts);
  metadata.add_float32s("tokenizer.ggml.scores", scores);
  metadata.add_int32s("tokenizer.ggml.token_type", types);
  metadata.add_uint32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(tokenizer.bos()));
  metadata.add_uint32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(tokenizer.eos()));
  metadata.add_uint32("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(tokenizer.facts().unknown));
  metadata.add_bool("tokenizer.ggml.add_bos_token", true);
  metadata.add_bool("tokenizer.ggml.add_eos_token", false);
  metadata.add_bool("tokenizer.ggml.add_space_prefix", tokenizer.facts().add_dummy_prefix);
  metadata.add_bool("tokenizer.ggml.remove_extra_whitespaces", tokenizer.facts().remove_extra_whitespaces);
}

GgufMetadata metadata_of(const LlamaShape& shape, const Tokenizer& tokenizer, const GgufOptions& options) {
  const auto size = [](int64_t number) { return static_cast<uint32_t>(number); };
  GgufMetadata metadata;
  metadata.add_text("general.architecture", "llama");
  metadata.add_text("general.name", options.name);
  metadata.add_uint32("general.alignment", kGgufAlignment);
  metadata.add_uint32("general.file_type", file_type_of(options.type));
  if (options.type == GgufType::kQ8_0) metadata.add_uint32("general.quantization_version", 2);
  metadata.add_uint32("llama.context_length", size(shape.context));
  metadata.add_uint32("llama.embedding_length", size(shape.d));
  metadata.add_uint32("llama.block_count", size(shape.blocks));
  metadata.add_uint32("llama.feed_forward_length", size(shape.mlp_width));
  metadata.add_uint32("llama.attention.head_count", size(shape.heads));
  metadata.add_uint32("llama.attention.head_count_kv", size(shape.kv_heads));
  metadata.add_float32("llama.attention.layer_norm_rms_epsilon", static_cast<float>(shape.norm_eps));
  metadata.add_uint32("llama.rope.dimension_count", size(shape.head_dim()));
  metadata.add_float32("llama.rope.freq_base", static_cast<float>(shape.rope_base));
  metadata.add_uint32("llama.vocab_size", size(shape.vocab));
  add_tokenizer(metadata, tokenizer, shape.vocab);
  return metadata;
}

Result<std::string> stored_as(std::span<const float> values, GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return stored_values(values, Dtype::kF32);
    case GgmlType::kF16:
      return stored_values(values, Dtype::kF16);
    case GgmlType::kBf16:
      return stored_values(values, Dtype::kBf16);
    case GgmlType::kQ8_0:
      return q8_blocks(values);
  }
  TP_CHECK(false, "ggml type {}", static_cast<uint32_t>(type));
}

}  // namespace

Status check_gguf_tokenizer(const Tokenizer& tokenizer) {
  const auto refuse = [](std::string_view reason) {
    return Error{fmt::format("GGUF cannot hold this tokenizer: {}", reason)};
  };
  const TokenizerFacts& facts = tokenizer.facts();
  if (!facts.bpe) return refuse("it is not sentencepiece's BPE, and llama.cpp would join pieces in another order");
  if (!facts.byte_fallback) return refuse("it has no byte fallback, and llama.cpp spells what has no piece in bytes");
  if (facts.has_normalizer_rules) {
    return refuse(
        fmt::format("it changes text before cutting it (normaliser {}), which llama.cpp would not; only "
                    "\"identity\" is the same in both",
                    quoted_text(facts.normalizer)));
  }
  if (facts.has_denormalizer_rules) return refuse("it changes text after decoding, which llama.cpp would not");
  if (facts.remove_extra_whitespaces) return refuse("it drops repeated spaces, which llama.cpp would keep");
  if (!facts.escape_whitespaces) return refuse("its pieces hold spaces as they are, and llama.cpp looks for U+2581");
  if (facts.whitespace_as_suffix) return refuse("its spaces end words, and llama.cpp lets them begin words");
  if (tokenizer.eos() < 0) return refuse("it has no end-of-text token, and llama.cpp would take token 2 for it");
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const Piece& piece = tokenizer.piece(id);
    if (piece.type != PieceType::kUserDefined && piece.type != PieceType::kUnused) continue;
    return refuse(fmt::format("piece {}, {}, is {}, which llama.cpp treats otherwise", id, quoted_text(piece.text),
                              piece.type == PieceType::kUnused ? "marked unused" : "defined by the user"));
  }
  return {};
}

Status write_gguf(const std::filesystem::path& path, const LlamaShape& shape, const Tokenizer& tokenizer,
                  const LlamaValues& values, const GgufOptions& options) {
  if (auto status = check_llama_shape(shape); !status) return status;
  if (tokenizer.vocab() > shape.vocab) {
    return Error{
        fmt::format("the tokenizer has {} pieces, but the model only {} tokens", tokenizer.vocab(), shape.vocab)};
  }
  if (auto status = check_gguf_tokenizer(tokenizer); !status) return status;

  if (path.empty()) return Error{"an empty path names no file"};
  if (auto status = make_directories(std::filesystem::absolute(path).parent_path()); !status) return status;

  const auto tensors = llama_tensors(shape);
  std::vector<GgufTensor> stored;
  for (const auto& tensor : tensors) {
    stored.push_back({gguf_name(tensor.name), tensor.shape, type_of(tensor, options.type)});
  }
  auto writer = GgufWriter::create(path, metadata_of(shape, tokenizer, options), stored);
  if (!writer) return writer.error();
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto of_tensor = values(tensors[i].name);
    if (!of_tensor) return of_tensor.error();
    if (is_rotated(tensors[i].name)) of_tensor = with_neighbouring_pairs(of_tensor.value(), shape);
    const auto bytes = stored_as(of_tensor.value(), stored[i].type);
    if (!bytes) return Error{fmt::format("tensor {}: {}", tensors[i].name, bytes.error().message)};
    if (auto status = writer.value().append(bytes.value()); !status) return status;
  }
  return writer.value().commit();
}

}  // namespace thinpipe
