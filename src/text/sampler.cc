#include "text/sampler.h"

#include <algorithm>
#include <bit>

#include "base/rng.h"

namespace thinpipe {
namespace {

// More than the four that make a Feistel network a pseudorandom permutation, because the small domains of small corpora
// mix less in each round.
constexpr uint64_t kRounds = 8;

}  // namespace

uint64_t window_count(uint64_t tokens, int64_t seq_len) {
  TP_CHECK(seq_len > 0, "seq_len is {}", seq_len);
  return tokens == 0 ? 0 : (tokens - 1) / static_cast<uint64_t>(seq_len);
}

uint64_t require_windows(uint64_t tokens, int64_t seq_len, std::string_view split) {
  const uint64_t windows = window_count(tokens, seq_len);
  if (windows > 0) return windows;
  if (tokens < 2) {
    throw UserError(
        fmt::format("the {} split has {} tokens, too few for any sequence; give a larger data.corpus", split, tokens));
  }
  throw UserError(
      fmt::format("train.seq_len = {} is longer than the {} split of {} tokens; use at most {} or a larger data.corpus",
                  seq_len, split, tokens, tokens - 1));
}

Status read_window(const TokenShard& shard, uint64_t window, std::span<int32_t> out) {
  TP_CHECK(out.size() >= 2, "a window has at least one input and one target");
  return shard.read(window * (out.size() - 1), out);
}

KeyedPermutation::KeyedPermutation(uint64_t seed, uint64_t stream, uint64_t size)
    : seed_(seed), stream_(stream), size_(size) {
  TP_CHECK(size > 0 && size <= uint64_t{1} << 62, "cannot permute {} windows", size);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
}

uint64_t KeyedPermutation::operator()(uint64_t index) const {
  TP_CHECK(index < size_, "index {} of a permutation of {}", index, size_);
  const CounterRng rng(seed_, stream_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  // The network permutes at most four times `size` values. Starting below size, it comes back below size within one
  // cycle.
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (rng.bits32(round << 32 | right) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

TrainSampler::TrainSampler(std::string_view corpus_id, uint64_t seed, uint64_t windows)
    : corpus_(stream_of(corpus_id)), seed_(seed), windows_(windows) {
  TP_CHECK(windows > 0, "a sampler needs at least one window");
}

uint64_t TrainSampler::window(uint64_t sample_id) const {
  // The seed keys the network; the corpus and the pass over it choose its stream.
  const uint64_t pass = sample_id / windows_;
  const uint64_t stream = CounterRng(corpus_, "training epoch").bits64(pass);
  return KeyedPermutation(seed_, stream, windows_)(sample_id % windows_);
}

}  // namespace thinpipe
