// GGUF files in the real llama.cpp, with made-up weights and of a model trained here: it computes the same as our own
// stage does from the weights in the file. Other tests compare our stage with PyTorch (tests/pipeline/parity_test.cc)
// and with the reference model of lab/.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "models.h"
#include "models/gguf.h"
#include "models/llama.h"
#include "models/llama_cpp.h"
#include "models/model_files.h"
#include "models/number_bytes.h"
#include "models/tiny_llama.h"
#include "pipeline/in_process.h"
#include "pipeline/progress.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "support/scratch.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using nlohmann::json;
using test::kTinyLlama;
using test::LlamaCpp;
using test::ScratchFolder;
using test::tiny_tokenizer;

constexpr size_t kPromptTokens = 64;

// ---- Made-up weights, in every type ----

// The values as rounded in the file.
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

// Three texts, begin-of-text first.
std::vector<std::vector<int32_t>> made_up_prompts() {
  std::vector<std::vector<int32_t>> all;
  for (const uint64_t seed : {21, 22, 23}) {
    auto ids = tiny_tokenizer().encode(test::made_up_text(600, seed));
    ids.insert(ids.begin(), tiny_tokenizer().bos());
    ids.resize(kPromptTokens);
    all.push_back(std::move(ids));
  }
  return all;
}

struct Agreement {
  size_t positions = 0;
  size_t same_best = 0;
  double worst_miss = 0;   // our logit gap where they chose another token
  double largest_gap = 0;  // difference of two logits
  double our_nats = 0;     // per token
  double their_nats = 0;
};

// ours: (T, V) logits in float64; theirs: the answer of llama_cpp.mjs for each position.
void compare(const at::Tensor& ours, const json& theirs, const std::vector<int32_t>& ids, Agreement& result) {
  const auto [values, best] = ours.topk(2, 1);
  const auto log_probabilities = ours.log_softmax(1);
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto row = static_cast<int64_t>(t);
    ++result.positions;
    if (theirs.at(t)["top"][0][0] == best[row][0].item<int64_t>()) {
      ++result.same_best;
    } else {
      result.worst_miss = std::max(result.worst_miss, (values[row][0] - values[row][1]).item<double>());
    }
    const auto logits = at::tensor(theirs.at(t)["logits"].get<std::vector<double>>(), at::kDouble);
    result.largest_gap = std::max(result.largest_gap, (ours[row] - logits).abs().max().item<double>());
    if (t + 1 == ids.size()) continue;
    result.our_nats -= log_probabilities[row][ids[t + 1]].item<double>();
    result.their_nats -= theirs.at(t)["next"].get<double>();
  }
}

class LlamaCppTest : public testing::Test {
 protected:
  void SetUp() override { test::require_llama_cpp(); }

  static Agreement agreement_of(GgufType type, const LlamaShape& shape = kTinyLlama) {
    const ScratchFolder scratch;
    write_gguf(scratch / "m.gguf", shape, tiny_tokenizer(), test::tiny_llama(shape), {type, "tiny"}).take();
    const auto sequences = made_up_prompts();
    const json answer = LlamaCpp::get().run(scratch / "m.gguf", {{"sequences", sequences}, {"all_logits", true}});
    if (answer.contains("error")) {
      ADD_FAILURE() << answer["error"].get<std::string>();
      return {};
    }
    RunConfig config;
    config.model = dense_model_of(shape);
    config.data.vocab = shape.vocab;
    config.train.precision = Precision::kFloat64;
    const ModelFiles files{"made-up", config, std::nullopt, Tokenizer::parse(tiny_tokenizer().model(), "tiny").take(),
                           [&, values = stored_llama(shape, type)](const std::string& name) {
                             return dense_parameter(shape, values, name);
                           }};
    const auto stage = load_model(files, "cpu");
    Agreement result;
    for (size_t n = 0; n < sequences.size(); ++n) {
      compare(logits_of(*stage, config.model, sequences[n]), answer["sequences"].at(n), sequences[n], result);
    }
    const auto predicted = static_cast<double>(result.positions - sequences.size());
    result.our_nats /= predicted;
    result.their_nats /= predicted;
    fmt::print(
        "{} of {} best tokens are the same; largest gap of a logit {:.2g}; perplexity {:.4f}, llama.cpp {:.4f}\n",
        result.same_best, result.positions, result.largest_gap, std::exp(result.our_nats), std::exp(result.their_nats));
    EXPECT_EQ(result.positions, 192U);
    return result;
  }
};

// llama.cpp keeps keys and values in 16 bits, and rounds a product's input to the type of the matrix: to 11 bits for
// f16, to 8 for bf16, to 7 and a scale for q8_0. The bounds are about twice the observed errors.
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
  // As many key heads as heads, rows that have no q8_0 blocks, tokens without a piece, another base.
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

// ---- A trained model ----

// A subspace model with two groups of heads, trained for a few dozen steps in two stages: far from its initial values,
// certain about some tokens and not about others.
class Trained {
 public:
  static const Trained& get() {
    static const Trained instance;
    return instance;
  }

  const ModelFiles& files() const { return *files_; }
  const Stage& stage() const { return *stage_; }

 private:
  Trained() {
    test::write_file(folder_ / "corpus.txt", test::english(1200, 1));
    RunConfig config;
    config.model.d = 64;
    config.model.blocks = 3;
    config.model.heads = 4;
    config.model.kv_heads = 2;
    config.model.mlp_width = 96;
    config.model.subspace.rank = 12;
    config.data.corpus = (folder_ / "corpus.txt").string();
    config.data.vocab = 400;
    config.train.steps = 40;
    config.train.seq_len = static_cast<int64_t>(kPromptTokens);
    config.train.microbatches = 2;
    config.pipeline.stages = 2;
    config.boundary.pack = Pack::kFp32;
    const auto corpus = prepare_corpus(config.data, folder_.path());
    CorpusBatches batches(corpus, config.train);
    auto run = RunFolder::create(folder_ / "run", config).take();
    keep_corpus(run.path(), corpus).take();
    const SystemClock clock;
    std::FILE* nowhere = std::fopen("/dev/null", "w");
    {
      Progress progress({config.train.steps, 1, config.model.d}, nowhere, false, clock);
      train_in_process(config, corpus.vocab, batches, run, progress, clock);
    }
    std::fclose(nowhere);
    files_ = std::make_unique<ModelFiles>(open_run(run.path(), std::nullopt));
    stage_ = load_model(*files_, "cpu");
  }

  test::ScratchFolder folder_;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<Stage> stage_;
};

std::vector<int32_t> tokens_of(const std::string& text) {
  const auto& tokenizer = Trained::get().files().tokenizer;
  auto ids = tokenizer.encode(text);
  ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

std::vector<std::vector<int32_t>> prompts() {
  std::vector<std::vector<int32_t>> all;
  for (const uint64_t seed : {31, 32, 33}) {
    all.push_back(tokens_of(test::english(20, seed)));
    all.back().resize(kPromptTokens);
  }
  return all;
}

at::Tensor our_logits(const std::vector<int32_t>& ids) {
  const auto& trained = Trained::get();
  return logits_of(trained.stage(), trained.files().config.model, ids);
}

class LlamaCppInterop : public testing::Test {
 protected:
  void SetUp() override {
    test::require_llama_cpp();
    if (IsSkipped() || HasFatalFailure()) return;
    const auto& files = Trained::get().files();
    write_gguf(scratch_ / "m.gguf", plain_shape(files.config), files.tokenizer, merged_values(files),
               {GgufType::kF32, "trained"})
        .take();
  }

  json ask(const json& tasks) {
    auto answer = LlamaCpp::get().run(scratch_ / "m.gguf", tasks);
    if (answer.contains("error")) throw UserError(answer["error"].get<std::string>());
    return answer;
  }

  test::ScratchFolder scratch_;
};

// Position by position through sequence.evaluate() at temperature 0; always continues with the text's own token.
TEST_F(LlamaCppInterop, ChoosesTheSameTokens) {
  const auto sequences = prompts();
  for (const auto& ids : sequences) ASSERT_EQ(ids.front(), Trained::get().files().tokenizer.bos());
  const auto theirs = ask({{"choose", sequences}}).at("chosen");
  size_t positions = 0, same = 0;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const auto [values, ids] = our_logits(sequences[n]).topk(2, 1);
    for (size_t t = 0; t < kPromptTokens; ++t) {
      const auto row = static_cast<int64_t>(t);
      ++positions;
      if (theirs.at(n).at(t) == ids[row][0].item<int64_t>()) {
        ++same;
      } else {
        // llama.cpp keeps keys and values in 16 bits, so nearly equal tokens may swap places.
        EXPECT_LT((values[row][0] - values[row][1]).item<double>(), 1e-2) << "prompt " << n << ", position " << t;
      }
    }
  }
  fmt::print("{} of {} best tokens are llama.cpp's\n", same, positions);
  EXPECT_EQ(positions, 3 * kPromptTokens);
}

}  // namespace
}  // namespace thinpipe
