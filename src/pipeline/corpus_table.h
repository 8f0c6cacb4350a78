// T_fixed made from the training text instead of random numbers (METHOD 1c): tokens that have similar neighbours get
// similar rows. It is made once, where a run begins; every stage then reads the same file of it
// (pipeline/table_file.h), so nothing more is exchanged than with a random table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "text/prepared.h"

namespace thinpipe {

// How often `second` follows `first`.
struct TokenPair {
  int32_t first;
  int32_t second;
  int64_t count;

  bool operator==(const TokenPair&) const = default;
};

// The pairs of neighbours in the first `most_tokens` of the training split, ascending.
Result<std::vector<TokenPair>> count_pairs(const PreparedCorpus& corpus, uint64_t most_tokens);

// (V, d) float32, rows with root mean square `std`; docs/model.md defines it. The same pairs and seed give the same
// bits on the same machine, whatever the number of threads.
at::Tensor table_from_pairs(const std::vector<TokenPair>& pairs, int64_t vocab, int64_t d, double std, uint64_t seed);

// The table that model.table = "corpus" means; undefined if the config says something else.
Result<at::Tensor> corpus_table(const RunConfig& config, const PreparedCorpus& corpus);

// If the config says model.table = "corpus": makes the table, saves it in the run's folder, and replaces the word by
// the table's hash, also in the folder's config.toml. Otherwise returns the config unchanged. May be repeated after a
// crash.
Result<RunConfig> settle_table(const std::filesystem::path& folder, const RunConfig& config,
                               const PreparedCorpus& corpus);

}  // namespace thinpipe
