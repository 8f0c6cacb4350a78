#include "pipeline/batches.h"

#include <ATen/ATen.h>

#include "model/fill.h"

namespace thinpipe {

TokenBatch token_batch(std::span<const int32_t> ids, int64_t seq_len) {
  return {ids_tensor(ids, {}).view({static_cast<int64_t>(ids.size()) / (seq_len + 1), seq_len + 1})};
}

Result<TokenBatch> CorpusBatches::training(int64_t step, int64_t microbatch) {
  const auto ids = TRY(windows_.training(step, microbatch));
  return token_batch(ids, seq_len_);
}

Result<TokenBatch> CorpusBatches::validation(int64_t first_window, int64_t count) {
  const auto ids = TRY(windows_.validation(first_window, count));
  return token_batch(ids, seq_len_);
}

}  // namespace thinpipe
