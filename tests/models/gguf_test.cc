// The bytes of a GGUF file, read back by a reader of the test's own; what is refused; a disk that fails.
// (llama_cpp_test.cc has the real reader.)
#include "models/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "models/gguf_file.h"
#include "models/number_bytes.h"
#include "models/tiny_llama.h"
#include "support/faulty_file_system.h"
#include "support/scratch.h"
#include "text/other_tokenizers.h"

namespace thinpipe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::GgufFile;
using test::kTinyLlama;
using test::ScratchFolder;
using test::tiny_llama;
using test::tiny_tokenizer;

GgufFile written(const LlamaShape& shape, GgufType type, const Tokenizer& tokenizer = tiny_tokenizer()) {
  const ScratchFolder scratch;
  test::FaultyFileSystem without_waiting;  // for the disk
  const ScopedFileSystem scoped(without_waiting);
  write_gguf(scratch / "m.gguf", shape, tokenizer, tiny_llama(shape), {type, "tiny \u00e9"}).take();
  EXPECT_EQ(scratch.file_count(), 1U);
  return GgufFile(read_file(scratch / "m.gguf").take());
}

std::string f32_bytes(const LlamaShape& shape, const std::string& name) {
  const auto values = tiny_llama(shape)(name).take();
  return stored_values(values, Dtype::kF32).take();
}

TEST(Gguf, HoldsTheModelsSizes) {
  const auto file = written(kTinyLlama, GgufType::kF16);
  const std::map<std::string, json> expected{{"general.architecture", "llama"},
                                             {"general.name", "tiny \u00e9"},
                                             {"general.alignment", 32},
                                             {"general.file_type", 1},
                                             {"llama.context_length", 256},
                                             {"llama.embedding_length", 64},
                                             {"llama.block_count", 3},
                                             {"llama.feed_forward_length", 160},
                                             {"llama.attention.head_count", 4},
                                             {"llama.attention.head_count_kv", 2},
                                             {"llama.attention.layer_norm_rms_epsilon", 1e-5F},
                                             {"llama.rope.dimension_count", 16},
                                             {"llama.rope.freq_base", 10000.0F},
                                             {"llama.vocab_size", 512}};
  for (const auto& [key, value] : expected) EXPECT_EQ(file.values.at(key), value) << key;
  EXPECT_FALSE(file.values.contains("general.quantization_version"));
}

TEST(Gguf, HoldsTheTokenizer) {
  LlamaShape shape = kTinyLlama;
  shape.vocab = 514;
  const auto file = written(shape, GgufType::kF16);
  const json& values = file.values;
  EXPECT_EQ(values.at("tokenizer.ggml.model"), "llama");
  EXPECT_EQ(values.at("tokenizer.ggml.pre"), "default");
  EXPECT_EQ(values.at("tokenizer.ggml.bos_token_id"), 1);
  EXPECT_EQ(values.at("tokenizer.ggml.eos_token_id"), 2);
  EXPECT_EQ(values.at("tokenizer.ggml.unknown_token_id"), 0);
  EXPECT_EQ(values.at("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(values.at("tokenizer.ggml.add_eos_token"), false);
  EXPECT_EQ(values.at("tokenizer.ggml.add_space_prefix"), true);
  EXPECT_EQ(values.at("tokenizer.ggml.remove_extra_whitespaces"), false);
  const auto& texts = values.at("tokenizer.ggml.tokens");
  const auto& scores = values.at("tokenizer.ggml.scores");
  const auto& types = values.at("tokenizer.ggml.token_type");
  ASSERT_EQ(texts.size(), 514U);
  ASSERT_EQ(scores.size(), 514U);
  ASSERT_EQ(types.size(), 514U);
  for (int32_t id = 0; id < 512; ++id) {
    EXPECT_EQ(texts[id], tiny_tokenizer().piece(id).text);
    EXPECT_EQ(scores[id], tiny_tokenizer().piece(id).score);
  }
  // ggml's numbers: normal, unknown, control, user-defined, unused, byte.
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[1], 3);
  EXPECT_EQ(types[3], 6);
  EXPECT_EQ(types[511], 1);
  EXPECT_EQ(types[512], 5);
  EXPECT_EQ(texts[513], "[PAD513]");
}

TEST(Gguf, HoldsEveryTensorOnceInTheOrderOfTheModel) {
  const auto file = written(kTinyLlama, GgufType::kF32);
  ASSERT_EQ(file.names.size(), 3 + 9 * 3U);
  EXPECT_EQ(file.names.front(), "token_embd.weight");
  EXPECT_EQ(file.names.back(), "output.weight");
  EXPECT_EQ(file.tensors.at("blk.2.ffn_down.weight").lengths, (std::vector<uint64_t>{160, 64}));
  EXPECT_EQ(file.tensors.at("blk.0.attn_norm.weight").lengths, (std::vector<uint64_t>{64}));
  const std::map<std::string, std::string> names{{"token_embd", "model.embed_tokens"},
                                                 {"blk.1.attn_norm", "model.layers.1.input_layernorm"},
                                                 {"blk.1.attn_v", "model.layers.1.self_attn.v_proj"},
                                                 {"blk.1.attn_output", "model.layers.1.self_attn.o_proj"},
                                                 {"blk.1.ffn_norm", "model.layers.1.post_attention_layernorm"},
                                                 {"blk.1.ffn_gate", "model.layers.1.mlp.gate_proj"},
                                                 {"blk.1.ffn_up", "model.layers.1.mlp.up_proj"},
                                                 {"blk.1.ffn_down", "model.layers.1.mlp.down_proj"},
                                                 {"output_norm", "model.norm"},
                                                 {"output", "lm_head"}};
  for (const auto& [gguf, theirs] : names) {
    EXPECT_EQ(file.tensors.at(gguf + ".weight").bytes, f32_bytes(kTinyLlama, theirs + ".weight")) << gguf;
  }
}

TEST(Gguf, PutsRowsThatTurnTogetherSideBySide) {
  const auto file = written(kTinyLlama, GgufType::kF32);
  constexpr size_t kRow = 64 * 4, kHead = 16;
  for (const auto& [gguf, theirs] : {std::pair("blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight"),
                                     std::pair("blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight")}) {
    const std::string ours = f32_bytes(kTinyLlama, theirs), stored = file.tensors.at(gguf).bytes;
    ASSERT_EQ(ours.size(), stored.size());
    for (size_t head = 0; head < stored.size() / kRow; head += kHead) {
      for (size_t i = 0; i < kHead / 2; ++i) {
        EXPECT_EQ(stored.substr((head + 2 * i) * kRow, kRow), ours.substr((head + i) * kRow, kRow));
        EXPECT_EQ(stored.substr((head + 2 * i + 1) * kRow, kRow), ours.substr((head + i + kHead / 2) * kRow, kRow));
      }
    }
  }
}

TEST(Gguf, StoresMatricesInTheTypeThatWasAskedFor) {
  const std::map<GgufType, std::pair<uint32_t, uint32_t>> types{
      {GgufType::kF32, {0, 0}}, {GgufType::kF16, {1, 1}}, {GgufType::kBf16, {30, 32}}, {GgufType::kQ8_0, {8, 7}}};
  for (const auto& [type, numbers] : types) {
    const auto file = written(kTinyLlama, type);
    EXPECT_EQ(file.values.at("general.file_type"), numbers.second);
    EXPECT_EQ(file.values.contains("general.quantization_version"), type == GgufType::kQ8_0);
    for (const auto& [name, tensor] : file.tensors) {
      EXPECT_EQ(tensor.type, tensor.lengths.size() == 1 ? 0 : numbers.first) << name;
    }
  }
  const auto values = tiny_llama(kTinyLlama)("lm_head.weight").take();
  EXPECT_EQ(written(kTinyLlama, GgufType::kBf16).tensors.at("output.weight").bytes,
            stored_values(values, Dtype::kBf16).take());
}

TEST(Gguf, KeepsRowsThatHaveNoBlocksAsF16) {
  LlamaShape shape = kTinyLlama;
  shape.mlp_width = 100;
  const auto file = written(shape, GgufType::kQ8_0);
  EXPECT_EQ(file.tensors.at("blk.0.ffn_down.weight").type, 1U);
  EXPECT_EQ(file.tensors.at("blk.0.ffn_up.weight").type, 8U);
}

TEST(Gguf, QuantisesABlockByItsLargestValue) {
  std::vector<float> values(64, 0.0F);
  values[3] = -254;
  values[4] = 1;  // half a step: away from zero
  values[5] = 100.9F;
  const std::string blocks = q8_blocks(values).take();
  ASSERT_EQ(blocks.size(), 68U);
  EXPECT_EQ(blocks.substr(0, 2), std::string("\x00\x40", 2));  // 2.0
  EXPECT_EQ(static_cast<int>(blocks[2 + 3]), -127);
  EXPECT_EQ(static_cast<int>(blocks[2 + 4]), 1);
  EXPECT_EQ(static_cast<int>(blocks[2 + 5]), 50);
  EXPECT_EQ(blocks.substr(34), std::string(34, '\0')) << "a block of zeros";
  const auto& random = test::tiny_values({"w", {4, 64}});
  const std::string coded = q8_blocks(random).take();
  for (size_t i = 0; i < random.size(); ++i) {
    uint16_t scale = 0;
    std::memcpy(&scale, coded.data() + i / 32 * 34, 2);
    const float back = from_f16(scale) * static_cast<float>(static_cast<signed char>(coded[i / 32 * 34 + 2 + i % 32]));
    EXPECT_NEAR(back, random[i], 0.52F * from_f16(scale));
  }
  std::vector<float> tiny(32, 0.0F);
  tiny[9] = 1e-42F;
  EXPECT_EQ(q8_blocks(tiny).take(), std::string(34, '\0')) << "a scale that has no inverse";
}

TEST(Gguf, RefusesWhatItsTypeCannotHold) {
  const ScratchFolder scratch;
  const auto refusal = [&](float value, GgufType type, const std::string& name) {
    const LlamaValues values = [&](const std::string& asked) {
      auto of_tensor = tiny_llama(kTinyLlama)(asked);
      if (asked == name) of_tensor.value()[2] = value;
      return of_tensor;
    };
    const auto status = write_gguf(scratch / "m.gguf", kTinyLlama, tiny_tokenizer(), values, {type, "x"});
    EXPECT_EQ(scratch.file_count(), 0U);
    return status.ok() ? "written" : status.error().message;
  };
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(refusal(7e4F, GgufType::kF16, up),
            "tensor " + up + ": value 2 is 70000, which F16 (at most 65504) cannot hold");
  EXPECT_EQ(refusal(3.4e38F, GgufType::kBf16, up), "tensor " + up + ": value 2 is 3.4e+38, which BF16 cannot hold");
  EXPECT_EQ(refusal(1e7F, GgufType::kQ8_0, up),
            "tensor " + up + ": value 2 is 10000000, which Q8_0 (at most 8319008) cannot hold");
  EXPECT_EQ(refusal(NAN, GgufType::kQ8_0, up),
            "tensor " + up + ": value 2 is nan, which Q8_0 (at most 8319008) cannot hold");
  EXPECT_EQ(refusal(INFINITY, GgufType::kF32, up), "tensor " + up + ": value 2 is inf, which F32 cannot hold");
  EXPECT_EQ(refusal(NAN, GgufType::kF16, "model.norm.weight"),
            "tensor model.norm.weight: value 2 is nan, which F32 cannot hold");
  const LlamaValues broken = [](const std::string&) -> Result<std::vector<float>> { return Error{"damaged"}; };
  EXPECT_EQ(write_gguf(scratch / "m.gguf", kTinyLlama, tiny_tokenizer(), broken).error().message, "damaged");
}

TEST(Gguf, RefusesSizesThatCannotBe) {
  const ScratchFolder scratch;
  LlamaShape shape = kTinyLlama;
  shape.kv_heads = 3;
  EXPECT_EQ(write_gguf(scratch / "m", shape, tiny_tokenizer(), tiny_llama(shape)).error().message,
            "the model: num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  shape = kTinyLlama;
  shape.vocab = 100;
  EXPECT_EQ(write_gguf(scratch / "m", shape, tiny_tokenizer(), tiny_llama(shape)).error().message,
            "the tokenizer has 512 pieces, but the model only 100 tokens");
  EXPECT_EQ(scratch.file_count(), 0U);
}

std::string trained_with(const std::map<std::string, std::string>& changes) {
  auto options = changes;  // what is changed stays
  options.insert({{"model_type", "bpe"}, {"vocab_size", "400"}, {"byte_fallback", "true"}});
  options.insert({{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}});
  return test::train_with(options, test::made_up_text(20'000, 3));
}

std::string tokenizer_refusal(const std::string& model) {
  const auto tokenizer = Tokenizer::parse(model, "x").take();
  const auto status = check_gguf_tokenizer(tokenizer);
  const ScratchFolder scratch;
  EXPECT_EQ(write_gguf(scratch / "m", kTinyLlama, tokenizer, tiny_llama(kTinyLlama)).ok(), status.ok());
  EXPECT_EQ(scratch.file_count(), status.ok() ? 1U : 0U);
  const std::string prefix = "GGUF cannot hold this tokenizer: ";
  if (status.ok()) return "taken";
  EXPECT_TRUE(status.error().message.starts_with(prefix));
  return status.error().message.substr(prefix.size());
}

TEST(Gguf, RefusesTokenizersThatLlamaCppWouldApplyOtherwise) {
  const auto refusal = [](const std::string& option, const std::string& value) {
    return tokenizer_refusal(trained_with({{option, value}}));
  };
  EXPECT_EQ(refusal("add_dummy_prefix", "true"), "taken");
  EXPECT_EQ(refusal("add_dummy_prefix", "false"), "taken");
  EXPECT_EQ(refusal("model_type", "unigram"),
            "it is not sentencepiece's BPE, and llama.cpp would join pieces in another order");
  EXPECT_EQ(refusal("byte_fallback", "false"),
            "it has no byte fallback, and llama.cpp spells what has no piece in bytes");
  EXPECT_EQ(refusal("normalization_rule_name", "nmt_nfkc"),
            "it changes text before cutting it (normaliser \"nmt_nfkc\"), which llama.cpp would not; only \"identity\" "
            "is the same in both");
  EXPECT_EQ(refusal("remove_extra_whitespaces", "true"), "it drops repeated spaces, which llama.cpp would keep");
  EXPECT_EQ(refusal("treat_whitespace_as_suffix", "true"), "its spaces end words, and llama.cpp lets them begin words");
  EXPECT_EQ(refusal("eos_id", "-1"), "it has no end-of-text token, and llama.cpp would take token 2 for it");
  EXPECT_EQ(refusal("user_defined_symbols", "<sep>"),
            "piece 3, \"<sep>\", is defined by the user, which llama.cpp treats otherwise");
}

TEST(Gguf, RefusesTokenizersThatWereChangedByHand) {
  // What follows in a protobuf message is added to what stands there. First field 3, the normaliser, with its field 5.
  const std::string good = trained_with({});
  EXPECT_EQ(tokenizer_refusal(good + std::string("\x1a\x02\x28\x00", 4)),
            "its pieces hold spaces as they are, and llama.cpp looks for U+2581");
  // Another piece, of type 5.
  EXPECT_EQ(tokenizer_refusal(good + "\x0a\x06\x0a\x02zq\x18\x05"),
            "piece 400, \"zq\", is marked unused, which llama.cpp treats otherwise");
  // The rules of another model's normaliser, field 3, as those for decoding, field 5. They are its last long field.
  const std::string other = trained_with({{"normalization_rule_name", "nmt_nfkc"}});
  const size_t rules = other.rfind("\x0a\x08nmt_nfkc\x12");
  ASSERT_NE(rules, std::string::npos);
  const std::string_view before(other.data() + rules - 4, 4);  // the field and a length of three bytes
  ASSERT_EQ(before[0], '\x1a');
  std::string decoding = other.substr(rules - 4);
  decoding[0] = '\x2a';
  EXPECT_EQ(tokenizer_refusal(good + decoding), "it changes text after decoding, which llama.cpp would not");
}

TEST(Gguf, LeavesTheOldFileWhenTheDiskFails) {
  LlamaShape shape = kTinyLlama;
  shape.blocks = 1;
  const auto write_to = [&](const fs::path& path) {
    return write_gguf(path, shape, tiny_tokenizer(), tiny_llama(shape), {GgufType::kQ8_0, "x"});
  };
  size_t operations = 0;
  {
    const ScratchFolder scratch;
    test::FaultyFileSystem counting;
    const ScopedFileSystem scoped(counting);
    ASSERT_TRUE(write_to(scratch / "m").ok());
    operations = counting.operations().size();
  }
  for (const auto fault : test::kAllFaults) {
    for (size_t at = 1; at < operations; ++at) {  // the last one flushes the folder, with the new file in it
      const ScratchFolder scratch;
      std::ofstream(scratch / "m") << "old";
      test::FaultyFileSystem faulty(fault, at);
      const ScopedFileSystem scoped(faulty);
      const auto status = write_to(scratch / "m");
      const auto where = fmt::format("{} at operation {} of {}", name_of(fault), at, operations);
      if (status.ok()) {
        EXPECT_NE(read_file(scratch / "m").take(), "old") << where;
      } else if (!test::kills(fault)) {
        EXPECT_EQ(scratch.file_count(), 1U) << where;
      }
      const auto bytes = read_file(scratch / "m").take();
      EXPECT_TRUE(bytes == "old" || bytes.size() == fs::file_size(scratch / "m")) << where;
      if (!status.ok() && !test::kills(fault)) {
        EXPECT_EQ(bytes, "old") << where;
      }
    }
  }
}

}  // namespace
}  // namespace thinpipe
