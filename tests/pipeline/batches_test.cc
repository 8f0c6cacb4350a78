// What training really reads: every window of train.bin once per pass over the data, whatever the portions, and nothing
// of val.bin.
#include "pipeline/batches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/scratch.h"
#include "text/shards.h"

namespace thinpipe {
namespace {

using Window = std::vector<int64_t>;

constexpr int64_t kTokensInValidation = 50;

// Every token of both splits is another, so that a window tells by its tokens where it was read.
class NumberedCorpus {
 public:
  explicit NumberedCorpus(int64_t train_tokens) : train_tokens_(train_tokens) {
    corpus_.folder = folder_.path();
    corpus_.vocab = train_tokens + kTokensInValidation;
    corpus_.train = write("train.bin", 0, train_tokens);
    corpus_.val = write("val.bin", train_tokens, kTokensInValidation);
    corpus_.id = "all different";
  }

  const PreparedCorpus& prepared() const { return corpus_; }
  // Window w of a split that begins with token `first`.
  static Window window(int64_t first, int64_t w, int64_t seq_len) {
    Window tokens(static_cast<size_t>(seq_len + 1));
    std::iota(tokens.begin(), tokens.end(), first + w * seq_len);
    return tokens;
  }
  int64_t first_of_validation() const { return train_tokens_; }

 private:
  std::filesystem::path write(const std::string& name, int64_t first, int64_t count) const {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(first));
    auto writer = TokenShardWriter::create(folder_ / name, corpus_.vocab).take();
    writer.append(tokens).take();
    writer.finish().take();
    return folder_ / name;
  }

  test::ScratchFolder folder_;
  PreparedCorpus corpus_;
  int64_t train_tokens_;
};

std::vector<Window> windows_in(const TokenBatch& batch) {
  std::vector<Window> windows;
  for (int64_t row = 0; row < batch.sequences(); ++row) {
    const auto tokens = batch.tokens[row];
    Window window;
    for (int64_t i = 0; i < tokens.size(0); ++i) window.push_back(tokens[i].item<int64_t>());
    windows.push_back(std::move(window));
  }
  return windows;
}

// The windows of the first `steps` steps, in the order of training.
std::vector<Window> trained_on(CorpusBatches& source, const TrainConfig& train, int64_t steps) {
  std::vector<Window> all;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t microbatch = 0; microbatch < train.microbatches; ++microbatch) {
      const auto windows = windows_in(source.training(step, microbatch).take());
      EXPECT_EQ(windows.size(), static_cast<size_t>(train.microbatch));
      all.insert(all.end(), windows.begin(), windows.end());
    }
  }
  return all;
}

std::vector<Window> all_windows(int64_t first, int64_t count, int64_t seq_len) {
  std::vector<Window> windows;
  for (int64_t w = 0; w < count; ++w) windows.push_back(NumberedCorpus::window(first, w, seq_len));
  return windows;
}

std::vector<Window> sorted(std::vector<Window> windows) {
  std::sort(windows.begin(), windows.end());
  return windows;
}

TrainConfig portions(int64_t seq_len) {
  TrainConfig train;
  train.seq_len = seq_len;
  train.microbatch = 3;
  train.microbatches = 2;
  train.seed = 5;
  return train;
}

TEST(CorpusBatches, TrainsOnEveryWindowOncePerPassAndOnNoneOfTheValidation) {
  constexpr int64_t kWindows = 60;  // ten steps
  const auto train = portions(8);
  const NumberedCorpus corpus(kWindows * train.seq_len + 1 + 4);  // and a rest too short for a window
  CorpusBatches source(corpus.prepared(), train);
  const auto windows = trained_on(source, train, 20);
  const auto middle = windows.begin() + kWindows;
  const auto expected = all_windows(0, kWindows, train.seq_len);
  const std::vector<Window> first(windows.begin(), middle), second(middle, windows.end());
  EXPECT_EQ(sorted(first), expected);
  EXPECT_EQ(sorted(second), expected);
  EXPECT_NE(first, expected) << "not in the order of the text";
  EXPECT_NE(first, second) << "an order of its own for every pass";
}

TEST(CorpusBatches, APassMayEndWithinAMicrobatch) {
  constexpr int64_t kWindows = 7;
  const auto train = portions(5);
  const NumberedCorpus corpus(kWindows * train.seq_len + 1);
  CorpusBatches source(corpus.prepared(), train);
  const auto windows = trained_on(source, train, 7);  // 42 samples: six passes
  for (int64_t pass = 0; pass < 6; ++pass) {
    const auto begin = windows.begin() + pass * kWindows;
    EXPECT_EQ(sorted({begin, begin + kWindows}), all_windows(0, kWindows, train.seq_len)) << "pass " << pass;
  }
}

TEST(CorpusBatches, TheSameNumbersGiveTheSameBatchInAnyOrder) {
  const auto train = portions(8);
  const NumberedCorpus corpus(60 * train.seq_len + 1);
  CorpusBatches one(corpus.prepared(), train), other(corpus.prepared(), train);
  const auto in_order = trained_on(one, train, 3);
  for (int64_t number = 5; number >= 0; --number) {
    const auto windows = windows_in(other.training(number / 2, number % 2).take());
    EXPECT_TRUE(std::equal(windows.begin(), windows.end(), in_order.begin() + number * 3)) << number;
  }
}

// A coordinator serves the ids without making tensors; a stage must train on the same ones.
TEST(CorpusBatches, HoldsTheIdsThatACoordinatorServes) {
  const auto train = portions(8);
  const NumberedCorpus corpus(60 * train.seq_len + 1);
  CorpusBatches source(corpus.prepared(), train);
  const TokenWindows served(corpus.prepared(), train);
  const auto flat = [](const TokenBatch& batch) {
    Window all;
    for (const auto& window : windows_in(batch)) all.insert(all.end(), window.begin(), window.end());
    return all;
  };
  const auto ids = [](std::vector<int32_t> from) { return Window(from.begin(), from.end()); };
  EXPECT_EQ(flat(source.training(7, 1).take()), ids(served.training(7, 1).take()));
  EXPECT_EQ(flat(source.validation(2, 3).take()), ids(served.validation(2, 3).take()));
}

TEST(CorpusBatches, ValidatesOnTheWindowsOfItsSplitInOrder) {
  const auto train = portions(8);
  const NumberedCorpus corpus(60 * train.seq_len + 1);
  CorpusBatches source(corpus.prepared(), train);
  ASSERT_EQ(source.validation_windows(), (kTokensInValidation - 1) / train.seq_len);
  const auto expected = all_windows(corpus.first_of_validation(), source.validation_windows(), train.seq_len);
  EXPECT_EQ(windows_in(source.validation(0, source.validation_windows()).take()), expected);
  EXPECT_EQ(windows_in(source.validation(4, 2).take()),
            std::vector<Window>(expected.begin() + 4, expected.begin() + 6));
}

}  // namespace
}  // namespace thinpipe
