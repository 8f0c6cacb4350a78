// config.json of foreign models and of ours: what is accepted, and every reason for which it is refused.
#include "models/hf_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace thinpipe {
namespace {

using nlohmann::json;

// Like the files of published models, with keys that we do not know.
json good() {
  return json::parse(R"({
    "_name_or_path": "somewhere", "architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
    "intermediate_size": 160, "max_position_embeddings": 2048, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "pretraining_tp": 2,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.0", "use_cache": true, "vocab_size": 400,
    "something": {"of": ["their", "own"]}})");
}

std::string refusal(const std::string& text) {
  const auto parsed = parse_hf_config(text, "config.json");
  if (parsed) return "taken";
  const std::string& message = parsed.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_TRUE(message.starts_with("config.json: ")) << message;
  return message.substr(13);
}

json with(const std::string& key, const json& value) {
  json changed = good();
  changed[key] = value;
  return changed;
}
std::string refusal_with(const std::string& key, const json& value) { return refusal(with(key, value).dump()); }
HfConfig taken_with(const std::string& key, const json& value) {
  return parse_hf_config(with(key, value).dump(), "config.json").take();
}

TEST(HfConfig, ReadsAPublishedConfig) {
  const auto config = parse_hf_config(good().dump(), "config.json").take();
  const LlamaShape shape{400, 64, 3, 4, 2, 160, 2048, 500000.0, 1e-6};
  EXPECT_EQ(config, (HfConfig{shape, 1, 2, false, Dtype::kBf16}));
}

TEST(HfConfig, ReadsBackItsOwnOutput) {
  HfConfig config{{400, 64, 3, 4, 2, 160, 2048, 12345.678, 3e-6}, 1, 2, true, Dtype::kF16};
  EXPECT_EQ(parse_hf_config(hf_config_text(config), "x").take(), config);
  config = {{kMaxLlamaVocab, kMaxLlamaWidth, kMaxLlamaBlocks, 1, 1, kMaxLlamaMlpWidth, kMaxLlamaContext}, {}, {}};
  EXPECT_EQ(parse_hf_config(hf_config_text(config), "x").take(), config);
}

TEST(HfConfig, OfAModelWithTokenTables_NamesItsCodeAndItsGroups) {
  LlamaShape shape{400, 64, 5, 4, 2, 160, 2048, 10000.0, 1e-5};
  shape.tables = TokenTables{{0, 2, 3}, false, 4};
  const auto config = json::parse(hf_config_text({shape, 1, 2, false, Dtype::kF32}));
  EXPECT_EQ(config, json::parse(R"({
    "anchor_first_blocks": [0, 2, 3], "architectures": ["ThinpipeForCausalLM"],
    "auto_map": {"AutoConfig": "modeling_thinpipe.ThinpipeConfig",
                 "AutoModelForCausalLM": "modeling_thinpipe.ThinpipeForCausalLM"},
    "bos_token_id": 1, "eos_token_id": 2, "first_dense_block": 4, "hidden_size": 64, "initializer_range": 0.02,
    "intermediate_size": 160, "max_position_embeddings": 2048, "model_type": "thinpipe", "num_attention_heads": 4,
    "num_hidden_layers": 5, "num_key_value_heads": 2, "previous_token_tables": false, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32", "use_cache": false,
    "vocab_size": 400})"));
}

TEST(HfConfig, UsesDefaultsOnlyForKeysMissingInOlderFiles) {
  json old = good();
  for (const char* key :
       {"num_key_value_heads", "rope_theta", "rope_scaling", "architectures", "hidden_act", "attention_bias",
        "mlp_bias", "tie_word_embeddings", "torch_dtype", "bos_token_id", "eos_token_id", "pretraining_tp"}) {
    old.erase(key);
  }
  const auto config = parse_hf_config(old.dump(), "config.json").take();
  const LlamaShape shape{400, 64, 3, 4, 4, 160, 2048, 10000.0, 1e-6};
  EXPECT_EQ(config, (HfConfig{shape, {}, {}, false, {}}));
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "max_position_embeddings", "rms_norm_eps"}) {
    json changed = good();
    changed.erase(key);
    EXPECT_EQ(refusal(changed.dump()), fmt::format("has no {}", key));
    EXPECT_EQ(refusal_with(key, nullptr), fmt::format("has no {}", key));
  }
}

TEST(HfConfig, RefusesImpossibleSizes) {
  EXPECT_EQ(refusal_with("hidden_size", 0), "hidden_size is 0, needs a whole number from 1 to 1048576");
  EXPECT_EQ(refusal_with("hidden_size", -64), "hidden_size is -64, needs a whole number from 1 to 1048576");
  EXPECT_EQ(refusal_with("hidden_size", 64.5), "hidden_size is 64.5, needs a whole number below 2^63");
  EXPECT_EQ(refusal_with("hidden_size", "64"), "hidden_size is \"64\", needs a whole number below 2^63");
  EXPECT_EQ(refusal_with("hidden_size", json::array({64})), "hidden_size is a list, needs a whole number below 2^63");
  EXPECT_EQ(refusal_with("vocab_size", std::numeric_limits<uint64_t>::max()),
            "vocab_size is 18446744073709551615, needs a whole number below 2^63");
  EXPECT_EQ(refusal_with("num_hidden_layers", 4097), "num_hidden_layers is 4097, needs a whole number from 1 to 4096");
  EXPECT_EQ(refusal_with("intermediate_size", (1 << 24) + 1),
            "intermediate_size is 16777217, needs a whole number from 1 to 16777216");
  EXPECT_EQ(refusal_with("max_position_embeddings", uint64_t{1} << 31),
            "max_position_embeddings is 2147483648, needs a whole number from 1 to 2147483647");
  EXPECT_EQ(refusal_with("rms_norm_eps", 0), "rms_norm_eps is 0, needs a number from 1e-30 to 1");
  EXPECT_EQ(refusal_with("rms_norm_eps", 1e-31), "rms_norm_eps is 1e-31, needs a number from 1e-30 to 1");
  EXPECT_EQ(refusal_with("rms_norm_eps", "x"), "rms_norm_eps is \"x\", needs a number");
  EXPECT_EQ(refusal_with("rope_theta", -1), "rope_theta is -1, needs a number above 0 and up to 1e+30");
  EXPECT_EQ(refusal_with("bos_token_id", 400), "bos_token_id is 400, needs a whole number from 0 to 399");
  EXPECT_EQ(refusal_with("eos_token_id", 400), "eos_token_id is 400, needs a whole number from 0 to 399");
  EXPECT_EQ(refusal_with("eos_token_id", json::array({400})),
            "eos_token_id is 400, needs a whole number from 0 to 399");
  EXPECT_EQ(refusal_with("tie_word_embeddings", 1), "tie_word_embeddings is 1, needs true or false");
}

TEST(HfConfig, RefusesHeadsThatDoNotDivide) {
  EXPECT_EQ(refusal_with("num_attention_heads", 3), "hidden_size 64 cannot be divided into 3 heads of an even width");
  EXPECT_EQ(refusal_with("num_attention_heads", 64), "hidden_size 64 cannot be divided into 64 heads of an even width");
  EXPECT_EQ(refusal_with("num_key_value_heads", 3), "num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  EXPECT_EQ(refusal_with("head_dim", 32), "head_dim is 32, needs 16 = hidden_size 64 / num_attention_heads 4");
  EXPECT_EQ(refusal_with("head_dim", 16), "taken");
  EXPECT_EQ(refusal_with("head_dim", nullptr), "taken");
}

TEST(HfConfig, RefusesOtherModelsByName) {
  EXPECT_EQ(refusal_with("model_type", "mistral"), "model_type is \"mistral\", needs \"llama\"");
  EXPECT_EQ(refusal_with("model_type", 1), "model_type is 1, needs a text");
  EXPECT_EQ(refusal_with("architectures", json::array({"LlamaModel"})),
            "architectures is [\"LlamaModel\"], needs [\"LlamaForCausalLM\"]");
  EXPECT_EQ(refusal_with("architectures", "LlamaForCausalLM"),
            "architectures is \"LlamaForCausalLM\", needs [\"LlamaForCausalLM\"]");
  EXPECT_EQ(refusal_with("architectures", json::array()), "architectures is a list, needs [\"LlamaForCausalLM\"]");
  EXPECT_EQ(refusal_with("hidden_act", "gelu"), "hidden_act is \"gelu\", needs \"silu\": a LLaMA's MLP is SwiGLU");
  EXPECT_EQ(refusal_with("attention_bias", true), "attention_bias is true; biases are not supported");
  EXPECT_EQ(refusal_with("mlp_bias", true), "mlp_bias is true; biases are not supported");
  EXPECT_EQ(refusal_with("sliding_window", 4096),
            "sliding_window is 4096, needs null: attention covers the whole context");
  EXPECT_EQ(refusal_with("quantization_config", {{"bits", 4}}),
            "has a quantization_config; needs F32, F16 or BF16 tensors");
  EXPECT_EQ(refusal_with("partial_rotary_factor", 0.5),
            "partial_rotary_factor is 0.5, needs 1: the whole head is rotated");
  EXPECT_EQ(refusal_with("partial_rotary_factor", 1.0), "taken");
}

TEST(HfConfig, RefusesScaledRotation) {
  EXPECT_EQ(refusal_with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
            "rope_scaling: rope_type is \"llama3\", needs \"default\": scaled rotation is not supported");
  EXPECT_EQ(refusal_with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
            "rope_scaling: rope_type is \"linear\", needs \"default\": scaled rotation is not supported");
  EXPECT_EQ(refusal_with("rope_scaling", {{"factor", 2.0}}),
            "rope_scaling: has no rope_type, needs rope_type \"default\" or null");
  EXPECT_EQ(refusal_with("rope_scaling", 2.0), "rope_scaling: is 2.0, needs an object");
  EXPECT_EQ(refusal_with("rope_parameters", {{"rope_type", "yarn"}}),
            "rope_parameters: rope_type is \"yarn\", needs \"default\": scaled rotation is not supported");
  EXPECT_EQ(refusal_with("rope_parameters", {{"partial_rotary_factor", 0.5}}),
            "rope_parameters: partial_rotary_factor is 0.5, needs 1: the whole head is rotated");
  EXPECT_EQ(refusal_with("rope_parameters", {{"rope_type", 1}}), "rope_parameters: rope_type is 1, needs a text");
}

TEST(HfConfig, ReadsTheRotaryBaseFromNewerFiles) {
  json newer = good();
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 777.0}};
  EXPECT_EQ(parse_hf_config(newer.dump(), "x").take().shape.rope_base, 777.0);
  EXPECT_EQ(refusal_with("rope_parameters", {{"rope_theta", 777.0}}),
            "rope_theta is 500000, but rope_parameters.rope_theta is 777; needs only one value");
  EXPECT_EQ(taken_with("rope_parameters", {{"rope_theta", 500000}}).shape.rope_base, 500000.0);
  EXPECT_EQ(taken_with("rope_scaling", {{"rope_type", "default"}}).shape.rope_base, 500000.0);
}

TEST(HfConfig, AcceptsAlternativeSpellings) {
  EXPECT_EQ(taken_with("eos_token_id", json::array({5, 7})).eos, 5);
  EXPECT_EQ(taken_with("eos_token_id", nullptr).eos, std::nullopt);
  EXPECT_EQ(taken_with("torch_dtype", "float8_e4m3fn").dtype, std::nullopt);
  EXPECT_TRUE(taken_with("tie_word_embeddings", true).tied);
  json newer = good();
  newer.erase("torch_dtype");
  newer["dtype"] = "float32";
  EXPECT_EQ(parse_hf_config(newer.dump(), "x").take().dtype, Dtype::kF32);
}

TEST(HfConfig, RefusesTextThatIsNotAConfig) {
  EXPECT_EQ(refusal(""), "is not valid JSON");
  EXPECT_EQ(refusal("{\"hidden_size\": 64"), "is not valid JSON");
  EXPECT_EQ(refusal("[1]"), "is a list, needs an object");
  EXPECT_EQ(refusal("3"), "is 3, needs an object");
  EXPECT_EQ(refusal(std::string((1 << 20) + 1, ' ')), "has 1048577 bytes, needs at most 1048576");
  EXPECT_EQ(refusal(std::string(500'000, '[') + std::string(500'000, ']')), "is a list, needs an object");
  EXPECT_EQ(refusal_with("model_type", std::string(1000, 'x')),
            "model_type is \"" + std::string(80, 'x') + "\"..., needs \"llama\"");
}

TEST(HfConfig, SurvivesEveryCutAndManyFlips) {
  const std::string text = good().dump();
  for (size_t length = 0; length < text.size(); ++length) EXPECT_NE(refusal(text.substr(0, length)), "taken");
  for (size_t at = 0; at < text.size(); ++at) {
    for (const int bit : {0, 1, 4, 6, 7}) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ 1 << bit);
      (void)refusal(changed);
    }
  }
}

TEST(LlamaShape, RefusesSizesThatNoFileCanDescribe) {
  const LlamaShape shape{400, 64, 3, 4, 2, 160, 2048, 10000.0, 1e-6};
  EXPECT_TRUE(check_llama_shape(shape).ok());
  LlamaShape changed = shape;
  changed.heads = 0;
  EXPECT_EQ(check_llama_shape(changed).error().message,
            "num_attention_heads is 0, needs a whole number from 1 to 1048576");
  changed = shape;
  changed.rope_base = std::numeric_limits<double>::infinity();
  EXPECT_EQ(check_llama_shape(changed).error().message, "rope_theta is inf, needs a number above 0 and up to 1e+30");
  changed = shape;
  changed.norm_eps = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(check_llama_shape(changed).error().message, "rms_norm_eps is nan, needs a number from 1e-30 to 1");
}

}  // namespace
}  // namespace thinpipe
