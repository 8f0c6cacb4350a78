#include "pipeline/corpus_table.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/files.h"
#include "base/rng.h"
#include "config/config_file.h"
#include "model/fill.h"
#include "model/fixed_table.h"
#include "model/threads.h"
#include "pipeline/table_file.h"
#include "text/shards.h"

namespace thinpipe {
namespace {

// Enough to know what follows a frequent token; the pairs take 8 bytes each while they are sorted.
constexpr uint64_t kMostTokens = uint64_t{1} << 24;
constexpr int64_t kIterations = 6;  // of the subspace iteration; the spectrum of text falls quickly
constexpr int64_t kExtraColumns = 16;
constexpr int64_t kMostDirections = 1024;  // time grows with the square of their number

// A sparse (V, V) matrix and its transpose.
struct Sparse {
  at::Tensor matrix, transposed;
};

Sparse sparse(const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& values, int64_t vocab) {
  const std::vector<int64_t> shape{vocab, vocab};
  return {at::sparse_coo_tensor(at::stack({rows, columns}), values, shape).coalesce(),
          at::sparse_coo_tensor(at::stack({columns, rows}), values, shape).coalesce()};
}

// Positive pointwise mutual information of a token with its neighbour on one side: how much more often the pair occurs
// than its parts would by chance. The neighbour's frequency is smoothed by the power 3/4.
Sparse information(const at::Tensor& tokens, const at::Tensor& neighbours, const at::Tensor& counts, int64_t vocab) {
  const auto sums = [&](const at::Tensor& ids) {
    return at::zeros({vocab}, counts.options()).index_add_(0, ids, counts);
  };
  const auto of_token = sums(tokens).add_(1);
  auto of_neighbour = sums(neighbours).add_(1).pow_(0.75);
  of_neighbour.div_(of_neighbour.sum());
  const auto chance = of_token.index_select(0, tokens) * of_neighbour.index_select(0, neighbours);
  return sparse(tokens, neighbours, (counts / chance).log_().clamp_min_(0), vocab);
}

at::Tensor orthonormal(const at::Tensor& matrix) { return std::get<0>(at::linalg_qr(matrix)); }

}  // namespace

Result<std::vector<TokenPair>> count_pairs(const PreparedCorpus& corpus, uint64_t most_tokens) {
  const auto shard = TRY(TokenShard::open(corpus.train));
  TRY(shard.check_ids_below(corpus.vocab));
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(shard.size(), most_tokens)));
  TRY(shard.read(0, tokens));
  std::vector<std::pair<int32_t, int32_t>> keys;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) keys.emplace_back(tokens[i], tokens[i + 1]);
  std::sort(keys.begin(), keys.end());
  std::vector<TokenPair> pairs;
  for (const auto& [first, second] : keys) {
    if (pairs.empty() || pairs.back().first != first || pairs.back().second != second) {
      pairs.push_back({first, second, 0});
    }
    ++pairs.back().count;
  }
  return pairs;
}

at::Tensor table_from_pairs(const std::vector<TokenPair>& pairs, int64_t vocab, int64_t d, double std, uint64_t seed) {
  const OneThread alone;                                        // the bits of a product depend on the number of threads
  const auto options = at::TensorOptions().dtype(at::kDouble);  // on the CPU: the same bits for every run of a config
  std::vector<int32_t> firsts, seconds;
  std::vector<double> numbers;
  for (const auto& pair : pairs) {
    firsts.push_back(pair.first);
    seconds.push_back(pair.second);
    numbers.push_back(static_cast<double>(pair.count));
  }
  const auto first = ids_tensor(firsts, options.dtype(at::kLong)),
             second = ids_tensor(seconds, options.dtype(at::kLong));
  const auto counts = doubles_tensor(numbers);
  const auto after = information(first, second, counts, vocab), before = information(second, first, counts, vocab);

  // The left singular vectors of X = [after | before], (V, 2V), by subspace iteration on X X^T.
  const int64_t rank = std::min({vocab, d, kMostDirections}), columns = std::min(vocab, rank + kExtraColumns);
  auto q = orthonormal(fill_random(CounterRng(seed, "corpus table"), {vocab, columns}, 1.0, options));
  for (int64_t i = 0; i < kIterations; ++i) {
    q = orthonormal(after.matrix.mm(after.transposed.mm(q)) + before.matrix.mm(before.transposed.mm(q)));
  }
  const auto right_after = after.transposed.mm(q), right_before = before.transposed.mm(q);
  const auto [squares, vectors] = at::linalg_eigh(right_after.t().mm(right_after) + right_before.t().mm(right_before));
  const auto largest = squares.narrow(0, columns - rank, rank).clamp_min(0);  // ascending; squared singular values
  auto table = q.mm(vectors.narrow(1, columns - rank, rank)) * largest.pow(0.25);

  // A rotation spreads the directions over all coordinates; below d directions fill only a part of the space.
  table = table.mm(orthonormal(fill_random(CounterRng(seed, "corpus table rotation"), {d, rank}, 1.0, options)).t());
  const auto size = table.square().mean(1, /*keepdim=*/true).sqrt_();
  // A token without neighbours keeps its random row.
  const auto random = FixedTable(seed, vocab, d, std, options).whole();
  return at::where(size > 1e-9 * size.max(), table / size.clamp_min(1e-300) * std, random).to(at::kFloat).contiguous();
}

Result<at::Tensor> corpus_table(const RunConfig& config, const PreparedCorpus& corpus) {
  if (config.model.table != kTableFromCorpus) return at::Tensor();
  const auto pairs = TRY(count_pairs(corpus, kMostTokens));
  return table_from_pairs(pairs, corpus.vocab, config.model.d, config.model.subspace.anchor_std, config.train.seed);
}

Result<RunConfig> settle_table(const std::filesystem::path& folder, const RunConfig& config,
                               const PreparedCorpus& corpus) {
  const auto table = TRY(corpus_table(config, corpus));
  if (!table.defined()) return config;
  auto settled = config;
  settled.model.table = TRY(save_table(folder, table));
  TRY(write_file_atomically(folder / "config.toml", to_toml(settled)));
  return settled;
}

}  // namespace thinpipe
