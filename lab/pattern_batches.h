// Tokens for checks on small models: a pattern that depends only on the step and the microbatch, so that a reference
// gets the same tokens as the pipeline.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "pipeline/batches.h"

namespace thinpipe {

// Any thread may call it. Needs vocab > train.microbatches.
class PatternBatches final : public Batches {
 public:
  PatternBatches(const TrainConfig& train, int64_t vocab) : train_(train), vocab_(vocab) {}

  // (B, T+1) each, in the order of the microbatches.
  std::vector<at::Tensor> step(int64_t number) const {
    std::vector<at::Tensor> all;
    for (int64_t m = 0; m < train_.microbatches; ++m) all.push_back(tokens(number, m, train_.microbatch));
    return all;
  }

  Result<TokenBatch> training(int64_t step, int64_t microbatch) override {
    return TokenBatch{tokens(step, microbatch, train_.microbatch)};
  }
  Result<TokenBatch> validation(int64_t first_window, int64_t count) override {
    return TokenBatch{tokens(first_window, 0, count)};
  }

 private:
  at::Tensor tokens(int64_t step, int64_t microbatch, int64_t sequences) const {
    return at::arange(sequences * (train_.seq_len + 1), at::kLong)
        .mul(5 + step % 7 + microbatch)
        .add(step + microbatch)
        .remainder(vocab_ - microbatch)
        .view({sequences, -1});
  }

  TrainConfig train_;
  int64_t vocab_;
};

}  // namespace thinpipe
