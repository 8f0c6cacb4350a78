#include "models/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/files.h"
#include "models/number_bytes.h"
#include "store/safetensors.h"

namespace thinpipe {
namespace {

// ---- The container ----

static_assert(std::endian::native == std::endian::little, "numbers are copied from memory without conversion");

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;

template <class Number>
requires std::is_arithmetic_v<Number>
void append(std::string& bytes, Number number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof number);
}

void append(std::string& bytes, std::string_view text) {
  append(bytes, uint64_t{text.size()});
  bytes += text;
}

uint64_t padding_after(uint64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

// The format's numbers for value types.
template <class T>
constexpr uint32_t kValueType = 0;
template <>
constexpr uint32_t kValueType<uint32_t> = 4;
template <>
constexpr uint32_t kValueType<int32_t> = 5;
template <>
constexpr uint32_t kValueType<float> = 6;
template <>
constexpr uint32_t kValueType<bool> = 7;
template <>
constexpr uint32_t kValueType<std::string> = 8;
constexpr uint32_t kArrayType = 9;

// Keys and values in the order they were added. Texts need not be UTF-8.
struct Metadata {
  std::string bytes;
  uint64_t count = 0;

  template <class T>
  void add(std::string_view key, const T& value) {
    static_assert(kValueType<T> != 0);
    append(bytes, key);
    append(bytes, kValueType<T>);
    append(bytes, value);
    ++count;
  }
  template <class T>
  void add(std::string_view key, const std::vector<T>& values) {
    append(bytes, key);
    append(bytes, kArrayType);
    append(bytes, kValueType<T>);
    append(bytes, uint64_t{values.size()});
    for (const T& value : values) append(bytes, value);
    ++count;
  }
};

struct TypeInfo {
  uint32_t number;        // number of the tensor type
  uint32_t file_type;     // number of a file with mostly such tensors
  uint64_t block_values;  // values that are stored together
  uint64_t block_bytes;
};

const TypeInfo& info_of(GgufType type) {
  // In the order of GgufType. A block of q8_0 is a 16-bit scale and 32 bytes.
  static constexpr TypeInfo kTypes[] = {{0, 0, 1, 4}, {1, 1, 1, 2}, {30, 32, 1, 2}, {8, 7, 32, 34}};
  return kTypes[static_cast<size_t>(type)];
}

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // slowest dimension first; the file has the opposite order
  GgufType type;

  uint64_t bytes() const {
    uint64_t values = 1;
    for (const int64_t length : shape) values *= static_cast<uint64_t>(length);
    return values / info_of(type).block_values * info_of(type).block_bytes;
  }
};

// Everything before the tensors' bytes.
std::string header_of(const Metadata& metadata, const std::vector<GgufTensor>& tensors) {
  std::string header = "GGUF";
  append(header, kVersion);
  append(header, uint64_t{tensors.size()});
  append(header, metadata.count);
  header += metadata.bytes;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    append(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.size()));
    for (auto length = tensor.shape.rbegin(); length != tensor.shape.rend(); ++length) append(header, *length);
    append(header, info_of(tensor.type).number);
    append(header, offset);
    offset += tensor.bytes() + padding_after(tensor.bytes());
  }
  header.append(padding_after(header.size()), '\0');
  return header;
}

// ---- A LLaMA in it ----

GgufType type_of(const LlamaTensor& tensor, GgufType type) {
  if (tensor.shape.size() == 1) return GgufType::kF32;
  const bool in_blocks = static_cast<uint64_t>(tensor.shape.back()) % info_of(type).block_values == 0;
  return in_blocks ? type : GgufType::kF16;
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

// Reorders the rows of a head: Hugging Face rotates rows i and i + head_dim / 2 together, llama.cpp 2i and 2i + 1.
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

void add_tokenizer(Metadata& metadata, const Tokenizer& tokenizer, int64_t vocab) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const Piece& piece = tokenizer.piece(id);
    texts.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int32_t>(piece.type) + 1);  // the same order, starting at 1
  }
  for (auto id = static_cast<int64_t>(texts.size()); id < vocab; ++id) {
    texts.push_back(fmt::format("[PAD{}]", id));
    scores.push_back(-1000);
    types.push_back(static_cast<int32_t>(PieceType::kUnused) + 1);
  }
  metadata.add("tokenizer.ggml.model", std::string("llama"));
  metadata.add("tokenizer.ggml.pre", std::string("default"));
  metadata.add("tokenizer.ggml.tokens", texts);
  metadata.add("tokenizer.ggml.scores", scores);
  metadata.add("tokenizer.ggml.token_type", types);
  metadata.add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(tokenizer.bos()));
  metadata.add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(tokenizer.eos()));
  metadata.add("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(tokenizer.facts().unknown));
  metadata.add("tokenizer.ggml.add_bos_token", true);
  metadata.add("tokenizer.ggml.add_eos_token", false);
  metadata.add("tokenizer.ggml.add_space_prefix", tokenizer.facts().add_dummy_prefix);
  metadata.add("tokenizer.ggml.remove_extra_whitespaces", tokenizer.facts().remove_extra_whitespaces);
}

Metadata metadata_of(const LlamaShape& shape, const Tokenizer& tokenizer, const GgufOptions& options) {
  const auto size = [](int64_t number) { return static_cast<uint32_t>(number); };
  Metadata metadata;
  metadata.add("general.architecture", std::string("llama"));
  metadata.add("general.name", options.name);
  metadata.add("general.alignment", uint32_t{kAlignment});
  metadata.add("general.file_type", info_of(options.type).file_type);
  if (options.type == GgufType::kQ8_0) metadata.add("general.quantization_version", uint32_t{2});
  metadata.add("llama.context_length", size(shape.context));
  metadata.add("llama.embedding_length", size(shape.d));
  metadata.add("llama.block_count", size(shape.blocks));
  metadata.add("llama.feed_forward_length", size(shape.mlp_width));
  metadata.add("llama.attention.head_count", size(shape.heads));
  metadata.add("llama.attention.head_count_kv", size(shape.kv_heads));
  metadata.add("llama.attention.layer_norm_rms_epsilon", static_cast<float>(shape.norm_eps));
  metadata.add("llama.rope.dimension_count", size(shape.head_dim()));
  metadata.add("llama.rope.freq_base", static_cast<float>(shape.rope_base));
  metadata.add("llama.vocab_size", size(shape.vocab));
  add_tokenizer(metadata, tokenizer, shape.vocab);
  return metadata;
}

Result<std::string> bytes_of(std::span<const float> values, GgufType type) {
  if (type == GgufType::kQ8_0) return q8_blocks(values);
  constexpr Dtype kDtypeOf[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16};  // in the order of GgufType
  return stored_values(values, kDtypeOf[static_cast<size_t>(type)]);
}

}  // namespace

Status check_gguf_tokenizer(const Tokenizer& tokenizer) {
  const auto refuse = [](std::string_view reason) {
    return Error{fmt::format("GGUF cannot hold this tokenizer: {}", reason)};
  };
  const TokenizerFacts& facts = tokenizer.facts();
  if (!facts.bpe) return refuse("it is not sentencepiece's BPE, so llama.cpp would join pieces in a different order");
  if (!facts.byte_fallback) return refuse("it has no byte fallback, but llama.cpp spells unknown text as bytes");
  if (facts.has_normalizer_rules) {
    return refuse(
        fmt::format("it changes text before tokenising it (normaliser {}), which llama.cpp does not; only "
                    "\"identity\" is the same in both",
                    quoted_for_error(facts.normalizer)));
  }
  if (facts.has_denormalizer_rules) return refuse("it changes text after decoding, which llama.cpp does not");
  if (facts.remove_extra_whitespaces) return refuse("it drops repeated spaces, which llama.cpp keeps");
  if (!facts.escape_whitespaces) return refuse("its pieces contain spaces, but llama.cpp looks for U+2581");
  if (facts.whitespace_as_suffix) return refuse("its spaces end words, but in llama.cpp they begin words");
  if (tokenizer.eos() < 0) return refuse("it has no end-of-text token, so llama.cpp would use token 2");
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const Piece& piece = tokenizer.piece(id);
    if (piece.type != PieceType::kUserDefined && piece.type != PieceType::kUnused) continue;
    return refuse(fmt::format("piece {}, {}, is {}, which llama.cpp treats differently", id,
                              quoted_for_error(piece.text),
                              piece.type == PieceType::kUnused ? "marked unused" : "defined by the user"));
  }
  return {};
}

Status write_gguf(const std::filesystem::path& path, const LlamaShape& shape, const Tokenizer& tokenizer,
                  const LlamaValues& values, const GgufOptions& options) {
  TP_CHECK(!shape.tables, "GGUF has no model with token tables");
  TRY(check_llama(shape, tokenizer));
  TRY(check_gguf_tokenizer(tokenizer));
  if (path.empty()) return Error{"the path is empty"};
  TRY(make_directories(std::filesystem::absolute(path).parent_path()));

  const auto tensors = llama_tensors(shape);
  std::vector<GgufTensor> stored;
  for (const auto& tensor : tensors) {
    stored.push_back({gguf_name(tensor.name), tensor.shape, type_of(tensor, options.type)});
  }
  auto file = TRY(AtomicFile::create(path));
  TRY(file.append(header_of(metadata_of(shape, tokenizer, options), stored)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto of_tensor = TRY(values(tensors[i].name));
    if (is_rotated(tensors[i].name)) of_tensor = with_neighbouring_pairs(of_tensor, shape);
    const auto bytes = bytes_of(of_tensor, stored[i].type);
    if (!bytes) return Error{fmt::format("tensor {}: {}", tensors[i].name, bytes.error().message)};
    const uint64_t size = bytes.value().size();
    TP_CHECK(size == stored[i].bytes(), "tensor {} has {} bytes, needs {}", tensors[i].name, size, stored[i].bytes());
    TRY(file.append(bytes.value()));
    TRY(file.append(std::string(padding_after(size), '\0')));
  }
  return file.commit();
}

}  // namespace thinpipe
