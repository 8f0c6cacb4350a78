// Token ids by number: which windows of the corpus a microbatch or an evaluation holds, read from the shards. The
// microbatches of a stage (pipeline/batches.h) and the windows that a coordinator serves are made of these. Needs no
// libtorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "text/prepared.h"
#include "text/sampler.h"
#include "text/shards.h"

namespace thinpipe {

// The hash by which stages check that they were given the run's own tokens: SHA-256 of the ids, four bytes each.
std::string ids_sha256(std::span<const int32_t> ids);

// Any number of threads may read at once.
class TokenWindows {
 public:
  // Opens the shards and checks every id against the vocabulary. Throws UserError when a shard is damaged or too short.
  TokenWindows(const PreparedCorpus& corpus, const TrainConfig& train);

  // The ids of B windows of T + 1, one after another: samples (step * M + microbatch) * B onwards.
  Result<std::vector<int32_t>> training(int64_t step, int64_t microbatch) const;

  // The same of validation windows, in order.
  Result<std::vector<int32_t>> validation(int64_t first_window, int64_t count) const;
  int64_t validation_windows() const { return static_cast<int64_t>(validation_windows_); }

 private:
  TrainConfig train_;
  TokenShard train_shard_;
  TokenShard validation_shard_;
  TrainSampler sampler_;
  uint64_t validation_windows_;
};

}  // namespace thinpipe
