// The token table made from the text: against counting and a singular value decomposition written naively.
#include "pipeline/corpus_table.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/files.h"
#include "base/rng.h"
#include "config/config_file.h"
#include "model/fixed_table.h"
#include "pipeline/table_file.h"
#include "support/scratch.h"
#include "tiny_run.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 40;

// Random counts of tokens 0 to 29; 30 to 39 never occur.
std::vector<TokenPair> some_pairs() {
  const CounterRng rng(5, "pairs");
  std::vector<TokenPair> pairs;
  for (int32_t first = 0; first < 30; ++first) {
    for (int32_t second = 0; second < 30; ++second) {
      const auto draw = static_cast<int64_t>(rng.bits32(static_cast<uint64_t>(first * 30 + second)) % 1000);
      const int64_t count = draw * draw * draw / 50'000'000 - 2;
      if (count > 0) pairs.push_back({first, second, count});
    }
  }
  return pairs;
}

at::Tensor naive_information(const at::Tensor& counts) {
  const auto of_token = counts.sum(1, true) + 1, smoothed = (counts.sum(0, true) + 1).pow(0.75);
  const auto ratio = counts / (of_token * (smoothed / smoothed.sum()));
  return at::where(counts > 0, ratio.log(), at::zeros_like(ratio)).clamp_min(0);
}

// Without the rotation and the scale of rows: (V, d).
at::Tensor naive_table(const std::vector<TokenPair>& pairs, int64_t d) {
  auto counts = at::zeros({kVocab, kVocab}, at::kDouble);
  for (const auto& pair : pairs) counts[pair.first][pair.second] = static_cast<double>(pair.count);
  const auto x = at::cat({naive_information(counts), naive_information(counts.t())}, 1);
  const auto [left, values, right] = at::linalg_svd(x, /*full_matrices=*/false);
  return left.narrow(1, 0, d) * values.narrow(0, 0, d).sqrt();
}

at::Tensor unit_rows(const at::Tensor& x) { return x / x.norm(2, 1, true); }

TEST(CorpusTable, HasTheAnglesOfTheSingularVectorsOfMutualInformation) {
  constexpr int64_t kWidth = 8;
  const auto table = table_from_pairs(some_pairs(), kVocab, kWidth, 0.3, 1).to(at::kDouble).narrow(0, 0, 30);
  const auto naive = naive_table(some_pairs(), kWidth).narrow(0, 0, 30);
  // A rotation of the rows does not change the angles between them. With a spectrum as flat as that of random counts,
  // the iteration is right to four digits.
  const auto angles = unit_rows(table).mm(unit_rows(table).t()), expected = unit_rows(naive).mm(unit_rows(naive).t());
  EXPECT_LT((angles - expected).abs().max().item<double>(), 1e-3);
}

TEST(CorpusTable, RowsHaveTheGivenSizeAndTokensWithoutNeighboursKeepTheirRandomRow) {
  const auto table = table_from_pairs(some_pairs(), kVocab, 8, 0.3, 1);
  const auto sizes = table.square().mean(1).sqrt();
  EXPECT_TRUE(at::allclose(sizes.narrow(0, 0, 30), at::full({30}, 0.3), 1e-5, 0));
  const auto random = FixedTable(1, kVocab, 8, 0.3, at::TensorOptions().dtype(at::kFloat)).whole();
  EXPECT_TRUE(at::equal(table.narrow(0, 30, 10), random.narrow(0, 30, 10)));
}

TEST(CorpusTable, IsTheSameForAnyNumberOfThreads) {
  at::set_num_threads(2);
  const auto two = table_from_pairs(some_pairs(), kVocab, 16, 0.3, 1);
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(table_from_pairs(some_pairs(), kVocab, 16, 0.3, 1), two));
  EXPECT_FALSE(at::equal(table_from_pairs(some_pairs(), kVocab, 16, 0.3, 2), two));
}

TEST(CorpusTable, AVocabularyBelowTheWidthAndNoPairsAtAllGiveFiniteRows) {
  for (const auto& pairs : {some_pairs(), std::vector<TokenPair>{}}) {
    const auto table = table_from_pairs(pairs, kVocab, 64, 0.3, 1);
    EXPECT_EQ(table.sizes(), (std::vector<int64_t>{kVocab, 64}));
    EXPECT_TRUE(at::isfinite(table).all().item<bool>());
  }
}

TEST(CorpusTable, CountsEveryPairOfNeighbours) {
  const test::TinyCorpus corpus;
  const auto prepared = corpus.prepared();
  const auto shard = TokenShard::open(prepared.train).take();
  std::vector<int32_t> tokens(shard.size());
  shard.read(0, tokens).take();
  for (const uint64_t most : {shard.size(), uint64_t{50}}) {
    std::map<std::pair<int32_t, int32_t>, int64_t> naive;
    for (size_t i = 0; i + 1 < most; ++i) ++naive[{tokens[i], tokens[i + 1]}];
    std::vector<TokenPair> expected;
    for (const auto& [pair, count] : naive) expected.push_back({pair.first, pair.second, count});
    EXPECT_EQ(count_pairs(prepared, most).take(), expected);
  }
}

TEST(CorpusTable, SettlingReplacesTheWordByTheHashOfAFileInTheRunsFolder) {
  const test::TinyCorpus corpus;
  const test::ScratchFolder folder;
  auto config = test::tiny_config(ModelMode::kSubspace);
  EXPECT_EQ(settle_table(folder.path(), config, corpus.prepared()).take(), config);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "config.toml"));
  config.model.table = kTableFromCorpus;
  const auto settled = settle_table(folder.path(), config, corpus.prepared()).take();
  EXPECT_EQ(settled.model.table.size(), 64U);
  EXPECT_EQ(load_config(folder.path() / "config.toml"), settled);
  const auto table = table_of_run(folder.path(), settled, corpus.prepared().vocab).take();
  EXPECT_TRUE(at::equal(table, corpus_table(config, corpus.prepared()).take()));
  // After a crash between the two files, or by a second process: the same again.
  EXPECT_EQ(settle_table(folder.path(), config, corpus.prepared()).take(), settled);
  EXPECT_EQ(settle_table(folder.path(), settled, corpus.prepared()).take(), settled);
}

}  // namespace
}  // namespace thinpipe
