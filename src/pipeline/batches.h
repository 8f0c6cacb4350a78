// Token shards to microbatches: which samples a step's microbatch holds follows from its numbers alone.
#pragma once

#include <cstdint>
#include <span>

#include "config/run_config.h"
#include "model/stage.h"
#include "text/prepare.h"
#include "text/windows.h"

namespace thinpipe {

// Sequences of T + 1 ids, one after another, as a batch.
TokenBatch token_batch(std::span<const int32_t> ids, int64_t seq_len);

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
  // Throws UserError as TokenWindows does.
  CorpusBatches(const PreparedCorpus& corpus, const TrainConfig& train)
      : windows_(corpus, train), seq_len_(train.seq_len) {}

  Result<TokenBatch> training(int64_t step, int64_t microbatch) override;

  // Validation windows in order, B at a time; the last batch may be smaller.
  int64_t validation_windows() const { return windows_.validation_windows(); }
  Result<TokenBatch> validation(int64_t first_window, int64_t count) override;

 private:
  TokenWindows windows_;
  int64_t seq_len_;
};

}  // namespace thinpipe
