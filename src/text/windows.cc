#include "text/windows.h"

#include <filesystem>

#include "base/sha256.h"

namespace thinpipe {
namespace {

TokenShard open_checked(const std::filesystem::path& path, int64_t vocab) {
  auto shard = TokenShard::open(path).take();
  shard.check_ids_below(vocab).take();
  return shard;
}

template <class WindowOf>
Result<std::vector<int32_t>> read_windows(const TokenShard& shard, int64_t count, int64_t seq_len,
                                          const WindowOf& window_of) {
  const auto width = static_cast<size_t>(seq_len + 1);
  std::vector<int32_t> ids(static_cast<size_t>(count) * width);
  for (int64_t i = 0; i < count; ++i) {
    TRY(read_window(shard, window_of(i), std::span(ids).subspan(static_cast<size_t>(i) * width, width)));
  }
  return ids;
}

}  // namespace

std::string ids_sha256(std::span<const int32_t> ids) {
  return sha256_hex({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

TokenWindows::TokenWindows(const PreparedCorpus& corpus, const TrainConfig& train)
    : train_(train),
      train_shard_(open_checked(corpus.train, corpus.vocab)),
      validation_shard_(open_checked(corpus.val, corpus.vocab)),
      sampler_(corpus.id, train.seed, require_windows(train_shard_.size(), train.seq_len, "training")),
      validation_windows_(require_windows(validation_shard_.size(), train.seq_len, "validation")) {}

Result<std::vector<int32_t>> TokenWindows::training(int64_t step, int64_t microbatch) const {
  const int64_t first_sample = (step * train_.microbatches + microbatch) * train_.microbatch;
  return read_windows(train_shard_, train_.microbatch, train_.seq_len,
                      [&](int64_t i) { return sampler_.window(static_cast<uint64_t>(first_sample + i)); });
}

Result<std::vector<int32_t>> TokenWindows::validation(int64_t first_window, int64_t count) const {
  return read_windows(validation_shard_, count, train_.seq_len,
                      [&](int64_t i) { return static_cast<uint64_t>(first_window + i); });
}

}  // namespace thinpipe
