// GGUF files in the real llama.cpp: it opens them, cuts text as sentencepiece does, and computes what a naive model
// computes from the weights that were written.
#include "export/llama_cpp.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>

#include "export/gguf_llama.h"
#include "export/naive_llama.h"
#include "export/number_bytes.h"
#include "export/odd_strings.h"
#include "export/q8.h"
#include "export/tiny_llama.h"
#include "support/scratch.h"

namespace thinpipe {
namespace {

using nlohmann::json;
using test::kTinyLlama;
using test::LlamaCpp;
using test::ScratchFolder;
using test::tiny_tokenizer;

// What is left of the values in the file.
std::vector<float> as_stored(const std::vector<float>& values, GgufType type) {
  std::vector<float> rounded = values;
  if (type == GgufType::kF16) {
    for (float& value : rounded) value = from_f16(to_f16(value));
  } else if (type == GgufType::kBf16) {
    for (float& value : rounded) value = from_bf16(to_bf16(value));
  } else if (type == GgufType::kQ8_0) {
    const std::string blocks = q8_blocks(values).take();
    for (size_t i = 0; i < values.size(); ++i) {
      const char* block = blocks.data() + i / 32 * 34;
      uint16_t scale = 0;
      std::memcpy(&scale, block, 2);
      rounded[i] = from_f16(scale) * static_cast<float>(static_cast<signed char>(block[2 + i % 32]));
    }
  }
  return rounded;
}

LlamaValues stored_llama(const LlamaShape& shape, GgufType type) {
  const auto values = test::tiny_llama(shape);
  return [values, type](const std::string& name) -> Result<std::vector<float>> {
    auto exact = values(name).take();
    return name.find("norm") != std::string::npos ? exact : as_stored(exact, type);
  };
}

// Three texts of 64 ids each, begin-of-text first.
std::vector<std::vector<int32_t>> prompts() {
  std::vector<std::vector<int32_t>> all;
  for (const uint64_t seed : {21, 22, 23}) {
    auto ids = tiny_tokenizer().encode(test::made_up_text(600, seed));
    ids.insert(ids.begin(), tiny_tokenizer().bos());
    ids.resize(64);
    all.push_back(std::move(ids));
  }
  return all;
}

struct Agreement {
  size_t positions = 0;
  size_t same_best = 0;
  double worst_miss = 0;   // by how much ours was best where theirs was another
  double largest_gap = 0;  // between two logits
  double our_nats = 0;     // per token
  double their_nats = 0;
};

Agreement compare(const test::NaiveLlama& model, const std::vector<std::vector<int32_t>>& sequences,
                  const json& theirs) {
  Agreement result;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const auto logits = model.logits(sequences[n]);
    const auto log_probabilities = model.log_probabilities(sequences[n]);
    for (size_t t = 0; t < sequences[n].size(); ++t) {
      const json& position = theirs.at(n).at(t);
      const auto ours = logits[t];
      std::vector<size_t> order(ours.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::partial_sort(order.begin(), order.begin() + 2, order.end(),
                        [&](size_t a, size_t b) { return ours[a] > ours[b]; });
      ++result.positions;
      if (position["top"][0][0] == order[0]) {
        ++result.same_best;
      } else {
        result.worst_miss = std::max(result.worst_miss, ours[order[0]] - ours[order[1]]);
      }
      for (size_t i = 0; i < ours.size(); ++i) {
        result.largest_gap = std::max(result.largest_gap, std::fabs(ours[i] - position["logits"][i].get<double>()));
      }
      if (t + 1 == sequences[n].size()) continue;
      result.our_nats -= log_probabilities[t];
      result.their_nats -= position["next"].get<double>();
    }
  }
  const auto predicted = static_cast<double>(result.positions - sequences.size());
  result.our_nats /= predicted;
  result.their_nats /= predicted;
  return result;
}

TEST(LlamaCppMissing, IsAFailureWhereItIsNeeded) {
  EXPECT_FATAL_FAILURE(test::skip_or_fail("npm is not installed", /*needed=*/true),
                       "llama.cpp cannot be used: npm is not installed");
  test::skip_or_fail("", /*needed=*/true);
  test::skip_or_fail("", /*needed=*/false);
  EXPECT_FALSE(IsSkipped());
}

class LlamaCppTest : public testing::Test {
 protected:
  void SetUp() override { test::require_llama_cpp(); }

  Agreement agreement_of(GgufType type, const LlamaShape& shape = kTinyLlama) {
    const ScratchFolder scratch;
    write_gguf(scratch / "m.gguf", shape, tiny_tokenizer(), test::tiny_llama(shape), {type, "tiny"}).take();
    const auto sequences = prompts();
    const json answer = LlamaCpp::get().run(scratch / "m.gguf", {{"sequences", sequences}, {"all_logits", true}});
    if (answer.contains("error")) {
      ADD_FAILURE() << answer["error"].get<std::string>();
      return {};
    }
    const test::NaiveLlama model(shape, stored_llama(shape, type));
    const auto result = compare(model, sequences, answer["sequences"]);
    fmt::print(
        "{} of {} best tokens are the same; largest gap of a logit {:.2g}; perplexity {:.4f}, llama.cpp {:.4f}\n",
        result.same_best, result.positions, result.largest_gap, std::exp(result.our_nats), std::exp(result.their_nats));
    EXPECT_EQ(result.positions, 192U);
    return result;
  }
};

// llama.cpp keeps keys and values in 16 bits, and rounds a product's input to the type of the matrix: to 11 bits for
// f16, to 8 for bf16, to 7 and a scale for q8_0. The bounds are about twice what was seen.
TEST_F(LlamaCppTest, ComputesTheSameFromF32) {
  const auto result = agreement_of(GgufType::kF32);
  EXPECT_LT(result.worst_miss, 1e-2);
  EXPECT_LT(result.largest_gap, 0.03);
  EXPECT_NEAR(std::exp(result.their_nats - result.our_nats), 1, 0.005);
}

TEST_F(LlamaCppTest, ComputesTheSameFromF16) {
  const auto result = agreement_of(GgufType::kF16);
  EXPECT_LT(result.worst_miss, 1e-2);
  EXPECT_LT(result.largest_gap, 0.03);
  EXPECT_NEAR(std::exp(result.their_nats - result.our_nats), 1, 0.005);
}

TEST_F(LlamaCppTest, ComputesNearlyTheSameFromBf16) {
  const auto result = agreement_of(GgufType::kBf16);
  EXPECT_LT(result.worst_miss, 0.1);
  EXPECT_LT(result.largest_gap, 0.25);
  EXPECT_NEAR(std::exp(result.their_nats - result.our_nats), 1, 0.01);
}

TEST_F(LlamaCppTest, ComputesNearlyTheSameFromQ8) {
  const auto result = agreement_of(GgufType::kQ8_0);
  EXPECT_LT(result.worst_miss, 0.3);
  EXPECT_LT(result.largest_gap, 0.7);
  EXPECT_NEAR(std::exp(result.their_nats - result.our_nats), 1, 0.02);
}

TEST_F(LlamaCppTest, ComputesTheSameForOtherShapes) {
  // A key head per head, rows that q8_0 has no blocks for, tokens without a piece, another base.
  const LlamaShape shape{520, 48, 2, 4, 4, 100, 128, 500000.0, 1e-6};
  const auto result = agreement_of(GgufType::kF32, shape);
  EXPECT_LT(result.worst_miss, 1e-2);
  EXPECT_LT(result.largest_gap, 0.03);
  const ScratchFolder scratch;
  write_gguf(scratch / "m.gguf", shape, tiny_tokenizer(), test::tiny_llama(shape), {GgufType::kQ8_0, "odd"}).take();
  const std::vector<int32_t> prompt{1, 300, 301};
  const json answer = LlamaCpp::get().run(
      scratch / "m.gguf", {{"generate", {{{"prompt", prompt}, {"tokens", 5}}}}, {"sequences", {prompt}}});
  ASSERT_FALSE(answer.contains("error")) << answer["error"];
  ASSERT_EQ(answer["generated"][0].size(), 5U);
  EXPECT_EQ(answer["generated"][0][0], answer["sequences"][0][2]["top"][0][0]);
}

class LlamaCppTokenizerTest : public LlamaCppTest {
 protected:
  static void expect_same_ids(const Tokenizer& tokenizer) {
    const ScratchFolder scratch;
    LlamaShape shape = kTinyLlama;
    shape.blocks = 1;
    write_gguf(scratch / "m.gguf", shape, tokenizer, test::tiny_llama(shape)).take();
    const auto texts = test::odd_strings();
    ASSERT_EQ(texts.size(), 200U);
    const json answer = LlamaCpp::get().run(scratch / "m.gguf", {{"tokenize", texts}});
    ASSERT_FALSE(answer.contains("error")) << answer["error"];
    EXPECT_EQ(answer["bos"], 1);
    EXPECT_EQ(answer["eos"], 2);
    EXPECT_EQ(answer["add_bos"], true);
    size_t same = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const json ours = tokenizer.encode(texts[i]);
      same += answer["tokens"][i] == ours;
      EXPECT_EQ(answer["tokens"][i], ours) << json(texts[i]).dump();
    }
    fmt::print("{} of {} strings are cut alike\n", same, texts.size());
  }
};

TEST_F(LlamaCppTokenizerTest, CutsTextAsSentencepieceDoes) { expect_same_ids(tiny_tokenizer()); }

TEST_F(LlamaCppTokenizerTest, CutsTextAlikeWithoutASpaceBeforeIt) {
  // The model's normaliser, field 3, is told once more about the space, its field 3: the last word counts.
  const std::string model = tiny_tokenizer().model() + std::string("\x1a\x02\x18\x00", 4);
  const auto tokenizer = Tokenizer::parse(model, "no space").take();
  ASSERT_FALSE(tokenizer.facts().add_dummy_prefix);
  ASSERT_NE(tokenizer.encode("The"), tiny_tokenizer().encode("The"));
  expect_same_ids(tokenizer);
}

}  // namespace
}  // namespace thinpipe
