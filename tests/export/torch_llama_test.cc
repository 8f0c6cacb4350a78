// A written Hugging Face folder computes the same in PyTorch as its weights do naively.
#include "export/torch_llama.h"

#include <gtest/gtest.h>

#include <cmath>

#include "export/hf_folder.h"
#include "export/naive_llama.h"
#include "export/tiny_llama.h"

namespace thinpipe {
namespace {

using test::kTinyLlama;
using test::ScratchFolder;
using test::tiny_llama;
using test::tiny_tokenizer;

double largest_gap(const LlamaShape& shape, const HfOptions& options, bool tied = false) {
  const ScratchFolder scratch;
  const auto path = scratch / "model";
  write_hf_folder(path, shape, tiny_tokenizer(), tiny_llama(shape), options).take();
  if (tied) {
    auto config = nlohmann::json::parse(read_file(path / "config.json").take());
    config["tie_word_embeddings"] = true;
    std::ofstream(path / "config.json") << config.dump();
  }
  const auto folder = HfFolder::open(path).take();
  const test::NaiveLlama naive(shape, [&](const std::string& name) { return folder.values(name); });
  std::vector<std::vector<int32_t>> sequences;
  for (const uint64_t seed : {31, 32}) {
    sequences.push_back(tiny_tokenizer().encode(test::made_up_text(200, seed)));
    sequences.back().insert(sequences.back().begin(), tiny_tokenizer().bos());
  }
  const auto theirs = test::torch_logits(path, shape.vocab, sequences);
  double gap = 0;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const auto ours = naive.logits(sequences[n]);
    for (size_t t = 0; t < ours.size(); ++t) {
      for (size_t v = 0; v < ours[t].size(); ++v) gap = std::max(gap, std::fabs(ours[t][v] - theirs[n][t][v]));
    }
  }
  fmt::print("largest gap of a logit: {:.2g}\n", gap);
  return gap;
}

class TorchLlamaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::why_no_torch().empty()) GTEST_SKIP() << test::why_no_torch();
  }
};

// Both sides compute in float64 from the same stored values, so only the order of sums is different.
TEST_F(TorchLlamaTest, AgreesOnOneFile) { EXPECT_LT(largest_gap(kTinyLlama, {}), 1e-10); }

TEST_F(TorchLlamaTest, AgreesOnShardsOf16Bits) {
  EXPECT_LT(largest_gap(kTinyLlama, {.dtype = Dtype::kBf16, .max_shard_bytes = 100'000}), 1e-10);
  EXPECT_LT(largest_gap(kTinyLlama, {.dtype = Dtype::kF16, .max_shard_bytes = 100'000}), 1e-10);
}

TEST_F(TorchLlamaTest, AgreesOnATiedHeadAndAnotherBase) {
  EXPECT_LT(largest_gap({512, 48, 2, 4, 4, 100, 128, 500000.0, 1e-6}, {}, /*tied=*/true), 1e-10);
}

}  // namespace
}  // namespace thinpipe
