// Which tokens a training sample holds: a pure function of (corpus, seed, sample number), with no state to save and no
// permutation in memory. So any stage, after any restart, finds the same sample by its number alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "text/shards.h"

namespace thinpipe {

// How many windows of T = seq_len inputs a split of `tokens` tokens has: floor((tokens - 1) / T). Window w is the
// tokens [w T, w T + T], T + 1 of them: inputs and, shifted by one, targets.
uint64_t window_count(uint64_t tokens, int64_t seq_len);

// window_count(). Throws UserError if it is 0; the message names train.seq_len and what would fit. `split` is
// "training" or "validation".
uint64_t require_windows(uint64_t tokens, int64_t seq_len, std::string_view split);

// Fills out (T + 1) with window `window`, which must exist. An error if the disk fails.
Status read_window(const TokenShard& shard, uint64_t window, std::span<int32_t> out);

// A bijection of [0, size): a balanced Feistel network over the next even number of bits, applied until the result is
// below size.
// Sizes from 1 to 2^62.
class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t seed, uint64_t stream, uint64_t size);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t size_;
  int half_bits_;
};

// The training order: every pass over the data visits each window once, in an order of its own. Validation needs none:
// it reads its windows from 0 up.
class TrainSampler {
 public:
  // corpus_id: PreparedCorpus::id. windows > 0.
  TrainSampler(std::string_view corpus_id, uint64_t seed, uint64_t windows);

  uint64_t window(uint64_t sample_id) const;

 private:
  uint64_t corpus_;
  uint64_t seed_;
  uint64_t windows_;
};

}  // namespace thinpipe
