// Token shards to microbatches: which samples a step's microbatch holds follows from its numbers alone.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "model/stage.h"
#include "text/prepare.h"
#include "text/sampler.h"
#include "text/shards.h"

namespace thinpipe {

// Where a first stage gets its tokens: from its own copy of the corpus, or from the coordinator's.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual Result<TokenBatch> training(int64_t step, int64_t microbatch) = 0;
  virtual Result<TokenBatch> validation(int64_t first_window, int64_t count) = 0;
};

// Reads the local copy of the corpus.
class CorpusBatches final : public Batches {
 public:
  // Opens the shards and checks every id against the vocabulary. Throws UserError when a shard is damaged or too short.
  CorpusBatches(const PreparedCorpus& corpus, const TrainConfig& train);

  // Sample ids (step * M + microbatch) * B onwards.
  Result<TokenBatch> training(int64_t step, int64_t microbatch) override;

  // Validation windows in order, B at a time; the last batch may be smaller.
  int64_t validation_windows() const { return static_cast<int64_t>(validation_windows_); }
  Result<TokenBatch> validation(int64_t first_window, int64_t count) override;

 private:
  TrainConfig train_;
  TokenShard train_shard_;
  TokenShard validation_shard_;
  TrainSampler sampler_;
  uint64_t validation_windows_;
};

}  // namespace thinpipe
