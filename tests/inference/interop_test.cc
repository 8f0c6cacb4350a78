// A model trained here, opened by others: its GGUF file by the real llama.cpp, its Hugging Face folder by a LLaMA
// written for Debian's PyTorch. What they compute is compared with what our own stage computes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/clock.h"
#include "export/gguf_llama.h"
#include "export/hf_folder.h"
#include "export/llama_cpp.h"
#include "export/odd_strings.h"
#include "export/torch_llama.h"
#include "inference/model_files.h"
#include "inference/plain_llama.h"
#include "pipeline/in_process.h"
#include "pipeline/progress.h"
#include "pipeline/run_corpus.h"
#include "pipeline/run_folder.h"
#include "support/scratch.h"
#include "tensor/fill.h"
#include "text/text_files.h"

namespace thinpipe {
namespace {

using nlohmann::json;
using test::LlamaCpp;

constexpr size_t kPromptTokens = 64;

// A subspace model of two groups of heads, trained for a few dozen steps in two stages: far from its first values, and
// sure of some tokens and not of others.
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
    BatchSource batches(corpus, config.train);
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

// (tokens, V)
at::Tensor our_logits(const std::vector<int32_t>& ids) {
  const auto& trained = Trained::get();
  KvCache cache(trained.files().config.model, static_cast<int64_t>(ids.size()), trained.stage().options());
  return trained.stage().logits(trained.stage().extend(ids_tensor(ids, trained.stage().options()), cache));
}

class LlamaCppInterop : public testing::Test {
 protected:
  void SetUp() override {
    test::require_llama_cpp();
    if (IsSkipped() || HasFatalFailure()) return;
    const auto& files = Trained::get().files();
    write_gguf(scratch_ / "m.gguf", plain_shape(files.config), files.tokenizer, plain_values(files),
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

// Position by position through sequence.evaluate() at temperature 0, the text's own token fed whatever was chosen.
TEST_F(LlamaCppInterop, ChoosesTheTokensThatWeChoose) {
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
        // llama.cpp keeps keys and values in 16 bits: what is nearly equal may change places.
        EXPECT_LT((values[row][0] - values[row][1]).item<double>(), 1e-2) << "prompt " << n << ", position " << t;
      }
    }
  }
  fmt::print("{} of {} best tokens are llama.cpp's\n", same, positions);
  EXPECT_EQ(positions, 3 * kPromptTokens);
}

TEST_F(LlamaCppInterop, CutsTextAsTheTrainedTokenizerDoes) {
  const auto texts = test::odd_strings();
  ASSERT_EQ(texts.size(), 200U);
  const auto theirs = ask({{"tokenize", texts}}).at("tokens");
  size_t same = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const json ours = Trained::get().files().tokenizer.encode(texts[i]);
    same += theirs.at(i) == ours;
    EXPECT_EQ(theirs.at(i), ours) << json(texts[i]).dump();
  }
  fmt::print("{} of {} strings are cut alike\n", same, texts.size());
}

TEST(TorchInterop, ComputesOurLogitsFromTheHuggingFaceFolder) {
  if (!test::why_no_torch().empty()) GTEST_SKIP() << test::why_no_torch();
  const auto& files = Trained::get().files();
  const test::ScratchFolder scratch;
  write_hf_folder(scratch / "hf", plain_shape(files.config), files.tokenizer, plain_values(files)).take();
  const auto sequences = prompts();
  const auto theirs = test::torch_logits(scratch / "hf", files.vocab(), sequences);
  double largest = 0;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const auto ours = floats_of(our_logits(sequences[n]));
    for (size_t t = 0; t < sequences[n].size(); ++t) {
      for (size_t v = 0; v < theirs[n][t].size(); ++v) {
        largest = std::max(largest, std::fabs(theirs[n][t][v] - ours[t * theirs[n][t].size() + v]));
      }
    }
  }
  fmt::print("largest difference of a logit {:.2g}\n", largest);
  EXPECT_LT(largest, 1e-4);
}

}  // namespace
}  // namespace thinpipe
