#include "models/hf_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

namespace thinpipe {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
// The index of a model with a thousand blocks has about one megabyte.
constexpr size_t kMaxIndexBytes = size_t{4} << 20;
constexpr size_t kMaxFiles = 10'000;
constexpr const char* kOurModelType = "thinpipe";  // of a model with token tables

constexpr std::pair<std::string_view, Dtype> kDtypes[] = {
    {"float64", Dtype::kF64}, {"float32", Dtype::kF32}, {"float16", Dtype::kF16}, {"bfloat16", Dtype::kBf16}};

// A short, one-line ASCII form of a value for error messages. Lists and objects are not printed.
std::string shown_for_error(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.is_string() ? quoted_for_error(value.get_ref<const std::string&>()) : value.dump();
}

// The value as a T: int64_t, double, std::string or bool. Errors call it `key`.
template <class T>
Result<T> value_as(const char* key, const Json& value) {
  bool fits = false;
  const char* needs = "";
  if constexpr (std::is_same_v<T, int64_t>) {
    fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
    needs = "a whole number below 2^63";
  } else if constexpr (std::is_same_v<T, double>) {
    fits = value.is_number();
    needs = "a number";
  } else if constexpr (std::is_same_v<T, bool>) {
    fits = value.is_boolean();
    needs = "true or false";
  } else {
    fits = value.is_string();
    needs = "a text";
  }
  if (!fits) return Error{fmt::format("{} is {}, needs {}", key, shown_for_error(value), needs)};
  return value.get<T>();
}

// The values of one JSON object in a foreign file. A key that is null counts as absent.
class JsonFields {
 public:
  static Result<JsonFields> of(const Json& value) {
    if (!value.is_object()) return Error{fmt::format("is {}, needs an object", shown_for_error(value))};
    return JsonFields(value);
  }

  // nullptr if the key is absent.
  const Json* find(const char* key) const {
    const auto found = object_->find(key);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
  }
  template <class T>
  Result<std::optional<T>> maybe(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::optional<T>();
    const T found = TRY(value_as<T>(key, *value));
    return std::optional<T>(found);
  }
  template <class T>
  Result<T> needed(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return Error{fmt::format("has no {}", key)};
    return value_as<T>(key, *value);
  }

 private:
  explicit JsonFields(const Json& object) : object_(&object) {}

  const Json* object_;
};

Status check_architecture(const JsonFields& fields) {
  if (const auto type = TRY(fields.needed<std::string>("model_type")); type != "llama") {
    const char* hint = type == kOurModelType ? "; thinpipe exports such a model but cannot read it back" : "";
    return Error{fmt::format("model_type is {}, needs \"llama\"{}", quoted_for_error(type), hint)};
  }
  const Json* architectures = fields.find("architectures");
  if (architectures != nullptr && *architectures != Json::array({"LlamaForCausalLM"})) {
    const bool one = architectures->is_array() && architectures->size() == 1;
    return Error{fmt::format("architectures is {}, needs [\"LlamaForCausalLM\"]",
                             one ? "[" + shown_for_error((*architectures)[0]) + "]" : shown_for_error(*architectures))};
  }
  if (const auto act = TRY(fields.maybe<std::string>("hidden_act")); act && *act != "silu") {
    return Error{fmt::format("hidden_act is {}, needs \"silu\": a LLaMA's MLP is SwiGLU", quoted_for_error(*act))};
  }
  return {};
}

// Refuses keys that would make a different model from the same tensors.
Status check_nothing_more(const JsonFields& fields) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    const auto bias = TRY(fields.maybe<bool>(key));
    if (bias.value_or(false)) return Error{fmt::format("{} is true; biases are not supported", key)};
  }
  if (const Json* window = fields.find("sliding_window")) {
    return Error{
        fmt::format("sliding_window is {}, needs null: attention covers the whole context", shown_for_error(*window))};
  }
  if (fields.find("quantization_config") != nullptr) {
    return Error{"has a quantization_config; needs F32, F16 or BF16 tensors"};
  }
  return {};
}

Status check_rotary_part(const JsonFields& fields) {
  const Json* part = fields.find("partial_rotary_factor");
  if (part == nullptr || *part == 1) return {};
  return Error{fmt::format("partial_rotary_factor is {}, needs 1: the whole head is rotated", shown_for_error(*part))};
}

// The base in "rope_scaling", or in "rope_parameters" as newer files call it. Refuses everything but the plain
// rotation.
Result<std::optional<double>> read_rope(const Json& object, bool needs_type) {
  const auto fields = TRY(JsonFields::of(object));
  auto type = TRY(fields.maybe<std::string>("rope_type"));
  if (!type) type = TRY(fields.maybe<std::string>("type"));
  if (type && *type != "default") {
    return Error{
        fmt::format("rope_type is {}, needs \"default\": scaled rotation is not supported", quoted_for_error(*type))};
  }
  if (!type && needs_type) return Error{"has no rope_type, needs rope_type \"default\" or null"};
  TRY(check_rotary_part(fields));
  return fields.maybe<double>("rope_theta");
}

Result<double> read_rope_base(const JsonFields& fields) {
  TRY(check_rotary_part(fields));
  auto base = TRY(fields.maybe<double>("rope_theta"));
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = fields.find(key.c_str());
    if (object == nullptr) continue;
    const auto other = read_rope(*object, /*needs_type=*/key == "rope_scaling");
    if (!other) return Error{fmt::format("{}: {}", key, other.error().message)};
    if (base && other.value() && *base != *other.value()) {
      return Error{
          fmt::format("rope_theta is {}, but {}.rope_theta is {}; needs only one value", *base, key, *other.value())};
    }
    if (other.value()) base = other.value();
  }
  return base.value_or(10000.0);
}

Result<LlamaShape> read_shape(const JsonFields& fields) {
  LlamaShape shape;
  shape.vocab = TRY(fields.needed<int64_t>("vocab_size"));
  shape.d = TRY(fields.needed<int64_t>("hidden_size"));
  shape.blocks = TRY(fields.needed<int64_t>("num_hidden_layers"));
  shape.heads = TRY(fields.needed<int64_t>("num_attention_heads"));
  const auto kv_heads = TRY(fields.maybe<int64_t>("num_key_value_heads"));
  shape.kv_heads = kv_heads.value_or(shape.heads);
  shape.mlp_width = TRY(fields.needed<int64_t>("intermediate_size"));
  shape.context = TRY(fields.needed<int64_t>("max_position_embeddings"));
  shape.norm_eps = TRY(fields.needed<double>("rms_norm_eps"));
  shape.rope_base = TRY(read_rope_base(fields));
  TRY(check_llama_shape(shape));
  const auto head_dim = TRY(fields.maybe<int64_t>("head_dim"));
  if (head_dim && *head_dim != shape.head_dim()) {
    return Error{fmt::format("head_dim is {}, needs {} = hidden_size {} / num_attention_heads {}", *head_dim,
                             shape.head_dim(), shape.d, shape.heads)};
  }
  return shape;
}

Result<std::optional<int64_t>> read_token(const char* key, const Json* value, int64_t vocab) {
  if (value == nullptr) return std::optional<int64_t>();
  const int64_t id = TRY(value_as<int64_t>(key, *value));
  if (id >= 0 && id < vocab) return std::optional(id);
  return Error{fmt::format("{} is {}, needs a whole number from 0 to {}", key, id, vocab - 1)};
}

Result<HfConfig> read_config(const Json& json) {
  const auto fields = TRY(JsonFields::of(json));
  TRY(check_architecture(fields));
  HfConfig config;
  config.shape = TRY(read_shape(fields));
  TRY(check_nothing_more(fields));
  config.bos = TRY(read_token("bos_token_id", fields.find("bos_token_id"), config.shape.vocab));
  const Json* eos = fields.find("eos_token_id");
  // The first of several ends a text; the others end a turn in a chat.
  if (eos != nullptr && eos->is_array() && !eos->empty()) eos = &(*eos)[0];
  config.eos = TRY(read_token("eos_token_id", eos, config.shape.vocab));
  const auto tied = TRY(fields.maybe<bool>("tie_word_embeddings"));
  config.tied = tied.value_or(false);
  auto stored_as = TRY(fields.maybe<std::string>("torch_dtype"));
  if (!stored_as) stored_as = TRY(fields.maybe<std::string>("dtype"));
  for (const auto& [known, dtype] : kDtypes) {
    if (stored_as == known) config.dtype = dtype;
  }
  return config;
}

// Refuses names that leave the folder or are hidden in it.
bool is_plain_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return name.size() <= 200 && name.ends_with(".safetensors") && name.front() != '.' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

Result<HfWeightMap> read_index(const Json& json) {
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return Error{"has no weight_map, needs an object of tensor names and file names"};
  }
  HfWeightMap files;
  std::set<std::string_view> distinct;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      return Error{fmt::format("{} is in {}, needs a plain file name that ends in .safetensors",
                               quoted_for_error(tensor), shown_for_error(file))};
    }
    distinct.insert(file.get_ref<const std::string&>());
    files.emplace(tensor, file.get<std::string>());
  }
  if (distinct.size() > kMaxFiles) {
    return Error{fmt::format("names {} files, needs at most {}", distinct.size(), kMaxFiles)};
  }
  return files;
}

// Parses `text` as JSON and calls `read` on it. Errors begin with `name`.
template <class T>
Result<T> parse_with(Result<T> (*read)(const Json&), std::string_view text, size_t max_bytes, std::string_view name) {
  const auto refuse = [name](std::string_view message) { return Error{fmt::format("{}: {}", name, message)}; };
  if (text.size() > max_bytes) {
    return refuse(fmt::format("has {} bytes, needs at most {}", text.size(), max_bytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return refuse("is not valid JSON");
  auto parsed = read(json);
  if (!parsed) return refuse(parsed.error().message);
  return parsed;
}

// The keys that only a plain LLaMA has.
Json keys_of_llama(const LlamaShape& shape) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"head_dim", shape.head_dim()},
          {"hidden_act", "silu"},
          {"mlp_bias", false},
          {"model_type", "llama"},
          {"pretraining_tp", 1},
          {"rope_scaling", nullptr},
          {"use_cache", true}};
}

// The keys that only ThinpipeConfig in modeling_thinpipe.py has, and where transformers finds that file's classes.
Json keys_of_tables(const TokenTables& tables) {
  return {{"anchor_first_blocks", tables.first_blocks},
          {"architectures", {"ThinpipeForCausalLM"}},
          {"auto_map",
           {{"AutoConfig", "modeling_thinpipe.ThinpipeConfig"},
            {"AutoModelForCausalLM", "modeling_thinpipe.ThinpipeForCausalLM"}}},
          {"first_dense_block", tables.first_dense_block},
          {"model_type", kOurModelType},
          {"previous_token_tables", tables.previous},
          {"use_cache", false}};
}

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view text, std::string_view name) {
  return parse_with(read_config, text, kMaxConfigBytes, name);
}

std::string hf_config_text(const HfConfig& config) {
  const LlamaShape& shape = config.shape;
  Json json{{"bos_token_id", nullptr},
            {"eos_token_id", nullptr},
            {"hidden_size", shape.d},
            {"initializer_range", 0.02},
            {"intermediate_size", shape.mlp_width},
            {"max_position_embeddings", shape.context},
            {"num_attention_heads", shape.heads},
            {"num_hidden_layers", shape.blocks},
            {"num_key_value_heads", shape.kv_heads},
            {"rms_norm_eps", shape.norm_eps},
            {"rope_theta", shape.rope_base},
            {"tie_word_embeddings", config.tied},
            {"vocab_size", shape.vocab}};
  json.update(shape.tables ? keys_of_tables(*shape.tables) : keys_of_llama(shape));
  if (config.bos) json["bos_token_id"] = *config.bos;
  if (config.eos) json["eos_token_id"] = *config.eos;
  for (const auto& [known, dtype] : kDtypes) {
    if (config.dtype == dtype) json["torch_dtype"] = known;
  }
  return json.dump(2) + '\n';
}

Result<HfWeightMap> parse_hf_index(std::string_view text, std::string_view name) {
  return parse_with(read_index, text, kMaxIndexBytes, name);
}

std::string hf_index_text(const HfWeightMap& files, uint64_t total_bytes) {
  const Json json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}};
  return json.dump(2) + '\n';
}

}  // namespace thinpipe
