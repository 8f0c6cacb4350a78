// Token shards to microbatches: the numbers of a step and a microbatch decide which samples it holds.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "model/stage.h"
#include "text/prepare.h"
#include "text/sampler.h"
#include "text/shards.h"

namespace thinpipe {

// Where the first stage gets its tokens: from its own copy of the corpus, or from the coordinator.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual Result<TokenBatch> training(int64_t step, int64_t microbatch) = 0;
  virtual Result<TokenBatch> validation(int64_t first_window, int64_t count) = 0;
};

// Reads the local copy of the corpus.
class BatchSource final : public Batches {
 public:
  // Opens the shards and checks every id against the vocabulary. Throws UserError if a shard is damaged or too short.
  BatchSource(const PreparedCorpus& corpus, const TrainConfig& train);

  // The samples from (step * M + microbatch) * B on.
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
