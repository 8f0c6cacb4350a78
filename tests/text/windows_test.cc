// Token ids by number, without libtorch: this test does not link it.
#include "text/windows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/scratch.h"

namespace thinpipe {
namespace {

constexpr int32_t kTokens = 101, kValidationTokens = 23;

// Every token of both splits is another, so that an id says where it was read.
PreparedCorpus numbered_corpus(const test::ScratchFolder& folder) {
  PreparedCorpus corpus;
  corpus.vocab = kTokens + kValidationTokens;
  corpus.id = "all different";
  const auto write = [&](const char* name, int32_t first, int32_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    auto writer = TokenShardWriter::create(folder / name, corpus.vocab).take();
    writer.append(tokens).take();
    writer.finish().take();
    return folder / name;
  };
  corpus.train = write("train.bin", 0, kTokens);
  corpus.val = write("val.bin", kTokens, kValidationTokens);
  return corpus;
}

TrainConfig small_train() {
  TrainConfig train;
  train.seq_len = 4;
  train.microbatch = 3;
  train.microbatches = 2;
  train.seed = 5;
  return train;
}

TEST(TokenWindows, Training_OfAnyMicrobatch_HoldsTheSamplersWindowsInOrder) {
  const test::ScratchFolder folder;
  const auto corpus = numbered_corpus(folder);
  const auto train = small_train();
  const TokenWindows windows(corpus, train);
  const TrainSampler sampler(corpus.id, train.seed, 25);
  for (const auto& [step, microbatch] : {std::pair<int64_t, int64_t>{0, 0}, {3, 1}, {100, 0}}) {
    std::vector<int32_t> expected;
    for (int64_t i = 0; i < train.microbatch; ++i) {
      const auto sample = static_cast<uint64_t>((step * train.microbatches + microbatch) * train.microbatch + i);
      for (int32_t j = 0; j <= 4; ++j) expected.push_back(static_cast<int32_t>(sampler.window(sample)) * 4 + j);
    }
    EXPECT_EQ(windows.training(step, microbatch).take(), expected);
  }
}

TEST(TokenWindows, Validation_OfTheSplit_HoldsItsWindowsInOrder) {
  const test::ScratchFolder folder;
  const TokenWindows windows(numbered_corpus(folder), small_train());
  EXPECT_EQ(windows.validation_windows(), 5);
  std::vector<int32_t> expected(10);
  std::iota(expected.begin(), expected.begin() + 5, kTokens + 12);
  std::iota(expected.begin() + 5, expected.end(), kTokens + 16);
  EXPECT_EQ(windows.validation(3, 2).take(), expected);
}

}  // namespace
}  // namespace thinpipe
