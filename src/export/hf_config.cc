#include "export/hf_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "export/json_fields.h"

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = 1 << 20;
// Also finite and not zero in the float that GGUF has for it.
constexpr double kMaxRopeBase = 1e30;
constexpr double kLeastNormEps = 1e-30;

constexpr std::pair<std::string_view, Dtype> kDtypes[] = {
    {"float64", Dtype::kF64}, {"float32", Dtype::kF32}, {"float16", Dtype::kF16}, {"bfloat16", Dtype::kBf16}};

void check_architecture(JsonFields& fields) {
  if (const auto type = fields.text("model_type"); fields.ok() && type != "llama") {
    fields.refuse(fmt::format("model_type is {}, only \"llama\" is read", quoted_text(type)));
  }
  const Json* architectures = fields.find("architectures");
  if (architectures != nullptr && *architectures != Json::array({"LlamaForCausalLM"})) {
    const bool one = architectures->is_array() && architectures->size() == 1;
    fields.refuse(
        fmt::format("architectures is {}, only [\"LlamaForCausalLM\"] is read",
                    one ? "[" + shown_for_error((*architectures)[0]) + "]" : shown_for_error(*architectures)));
  }
  if (const auto act = fields.maybe_text("hidden_act"); act && *act != "silu") {
    fields.refuse(fmt::format("hidden_act is {}, needs \"silu\": a LLaMA's MLP is SwiGLU", quoted_text(*act)));
  }
}

// What would make the tensors alone another model than they are here.
void check_nothing_more(JsonFields& fields) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (fields.flag(key, false)) fields.refuse(fmt::format("{} is true; only matrices without biases are read", key));
  }
  if (const Json* window = fields.find("sliding_window")) {
    fields.refuse(fmt::format("sliding_window is {}; only attention to the whole context is read, needs null",
                              shown_for_error(*window)));
  }
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("has a quantization_config; quantised tensors are not read, needs F32, F16 or BF16 ones");
  }
}

void check_rotary_part(JsonFields& fields) {
  const Json* part = fields.find("partial_rotary_factor");
  if (part != nullptr && *part != 1) {
    fields.refuse(fmt::format("partial_rotary_factor is {}, needs 1: heads are rotated whole", shown_for_error(*part)));
  }
}

// "rope_scaling", or "rope_parameters" as newer files call it: only the plain rotation. The base, if it stands there.
std::optional<double> read_rope(JsonFields& fields, const char* key, std::string& error) {
  const Json* object = fields.find(key);
  if (object == nullptr) return std::nullopt;
  std::string inner_error;
  JsonFields inner(*object, inner_error);
  auto type = inner.maybe_text("rope_type");
  if (!type) type = inner.maybe_text("type");
  if (type && *type != "default") {
    inner.refuse(fmt::format("rope_type is {}, only unscaled rotation (\"default\") is read", quoted_text(*type)));
  }
  if (inner.ok() && !type && std::string_view(key) == "rope_scaling") {
    inner.refuse("has no rope_type, needs to be null or of rope_type \"default\"");
  }
  check_rotary_part(inner);
  const auto base = inner.maybe_number("rope_theta", kMaxRopeBase);
  if (!inner_error.empty() && error.empty()) error = fmt::format("{}: {}", key, inner_error);
  return base;
}

double read_rope_base(JsonFields& fields, std::string& error) {
  check_rotary_part(fields);
  auto base = fields.maybe_number("rope_theta", kMaxRopeBase);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto other = read_rope(fields, key, error);
    if (base && other && *base != *other) {
      fields.refuse(fmt::format("rope_theta is {} and {}.rope_theta {}; needs one of them", *base, key, *other));
    }
    if (other) base = other;
  }
  return base.value_or(10000.0);
}

void read_heads(JsonFields& fields, LlamaShape& shape) {
  shape.heads = fields.count("num_attention_heads", 1, kMaxLlamaWidth);
  if (fields.ok() && (shape.d % shape.heads != 0 || shape.d / shape.heads % 2 != 0)) {
    fields.refuse(fmt::format("hidden_size {} does not make {} heads of an even width", shape.d, shape.heads));
  }
  shape.kv_heads = fields.maybe_count("num_key_value_heads", 1, kMaxLlamaWidth).value_or(shape.heads);
  if (fields.ok() && shape.heads % shape.kv_heads != 0) {
    fields.refuse(
        fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}", shape.heads, shape.kv_heads));
  }
  const auto head_dim = fields.maybe_count("head_dim", 1, kMaxLlamaWidth);
  if (fields.ok() && head_dim && *head_dim != shape.head_dim()) {
    fields.refuse(fmt::format("head_dim is {}, needs {} = hidden_size {} / num_attention_heads {}", *head_dim,
                              shape.head_dim(), shape.d, shape.heads));
  }
}

std::optional<int64_t> read_eos(JsonFields& fields, int64_t vocab) {
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr || !value->is_array() || value->empty()) return fields.maybe_count("eos_token_id", 0, vocab - 1);
  // Of several, the first ends a text; the others end a turn of a chat.
  std::string error;
  const Json first{{"eos_token_id", (*value)[0]}};
  const auto eos = JsonFields(first, error).maybe_count("eos_token_id", 0, vocab - 1);
  if (!error.empty()) fields.refuse(error);
  return eos;
}

std::optional<Dtype> read_dtype(JsonFields& fields) {
  auto name = fields.maybe_text("torch_dtype");
  if (!name) name = fields.maybe_text("dtype");
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

HfConfig read_config(const Json& json, std::string& error) {
  JsonFields fields(json, error);
  check_architecture(fields);
  HfConfig config;
  LlamaShape& shape = config.shape;
  shape.vocab = fields.count("vocab_size", 1, kMaxLlamaVocab);
  shape.d = fields.count("hidden_size", 1, kMaxLlamaWidth);
  shape.blocks = fields.count("num_hidden_layers", 1, kMaxLlamaBlocks);
  read_heads(fields, shape);
  shape.mlp_width = fields.count("intermediate_size", 1, kMaxLlamaMlpWidth);
  shape.context = fields.count("max_position_embeddings", 1, kMaxLlamaContext);
  shape.norm_eps = fields.number("rms_norm_eps", 1);
  if (fields.ok() && shape.norm_eps < kLeastNormEps) {
    fields.refuse(fmt::format("rms_norm_eps is {}, needs at least {}", shape.norm_eps, kLeastNormEps));
  }
  shape.rope_base = read_rope_base(fields, error);
  check_nothing_more(fields);
  config.bos = fields.maybe_count("bos_token_id", 0, shape.vocab - 1);
  config.eos = read_eos(fields, shape.vocab);
  config.tied = fields.flag("tie_word_embeddings", false);
  config.dtype = read_dtype(fields);
  return config;
}

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view text, std::string_view name) {
  const auto refuse = [name](std::string_view message) { return Error{fmt::format("{}: {}", name, message)}; };
  if (text.size() > kMaxConfigBytes) {
    return refuse(fmt::format("has {} bytes, at most {} are read", text.size(), kMaxConfigBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return refuse("is not valid JSON");
  std::string error;
  HfConfig config = read_config(json, error);
  if (!error.empty()) return refuse(error);
  return config;
}

std::string hf_config_text(const HfConfig& config) {
  const LlamaShape& shape = config.shape;
  Json json{{"architectures", {"LlamaForCausalLM"}},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"bos_token_id", nullptr},
            {"eos_token_id", nullptr},
            {"head_dim", shape.heads > 0 ? shape.head_dim() : 0},
            {"hidden_act", "silu"},
            {"hidden_size", shape.d},
            {"initializer_range", 0.02},
            {"intermediate_size", shape.mlp_width},
            {"max_position_embeddings", shape.context},
            {"mlp_bias", false},
            {"model_type", "llama"},
            {"num_attention_heads", shape.heads},
            {"num_hidden_layers", shape.blocks},
            {"num_key_value_heads", shape.kv_heads},
            {"pretraining_tp", 1},
            {"rms_norm_eps", shape.norm_eps},
            {"rope_scaling", nullptr},
            {"rope_theta", shape.rope_base},
            {"tie_word_embeddings", config.tied},
            {"use_cache", true},
            {"vocab_size", shape.vocab}};
  if (config.bos) json["bos_token_id"] = *config.bos;
  if (config.eos) json["eos_token_id"] = *config.eos;
  for (const auto& [known, dtype] : kDtypes) {
    if (config.dtype == dtype) json["torch_dtype"] = known;
  }
  return json.dump(2) + '\n';
}

Status check_llama_shape(const LlamaShape& shape) {
  HfConfig config;
  config.shape = shape;
  const auto parsed = parse_hf_config(hf_config_text(config), "the model");
  if (!parsed) return parsed.error();
  // JSON has no infinity: it reads back as a default.
  if (parsed.value().shape != shape) return Error{"the model: its rope_theta or rms_norm_eps is not a number"};
  return {};
}

}  // namespace thinpipe
