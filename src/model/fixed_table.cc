#include "model/fixed_table.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/result.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "config/model_spec.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

constexpr int64_t kRowsAtOnce = 1024;  // while hashing
constexpr int64_t kSampleRows = 256;

}  // namespace

FixedTable::FixedTable(uint64_t seed, int64_t vocab, int64_t d, double anchor_std, const at::TensorOptions& options)
    : seed_(seed),
      vocab_(vocab),
      d_(d),
      anchor_std_(anchor_std),
      options_(options),
      keeps_(vocab * d * static_cast<int64_t>(options.dtype().itemsize()) <= kMostFixedTableBytes) {}

FixedTable::FixedTable(const at::Tensor& table, const at::TensorOptions& options)
    : vocab_(table.size(0)), d_(table.size(1)), options_(options), given_(true), cached_(table.to(options)) {
  TP_CHECK(table.dim() == 2 && table.scalar_type() == at::kFloat, "a table of {} numbers per row, type {}", d_,
           at::toString(table.scalar_type()));
}

at::Tensor FixedTable::make_rows(const at::Tensor& ids, const at::TensorOptions& options) const {
  // The stored type is float32 or wider, so that nothing is lost on the way back.
  if (given_) return cached_.index_select(0, ids).to(options);
  return fill_random_rows(seed_, stream_of("t_fixed"), ids, d_, anchor_std_, options);
}

at::Tensor FixedTable::rows(const at::Tensor& ids) const {
  if (keeps_ && !cached_.defined()) cached_ = whole();
  return cached_.defined() ? cached_.index_select(0, ids) : make_rows(ids, options_);
}

at::Tensor FixedTable::whole() const {
  return cached_.defined() ? cached_ : make_rows(at::arange(vocab_, options_.dtype(at::kLong)), options_);
}

std::string FixedTable::hash() const {
  Sha256 hash;
  for (int64_t first = 0; first < vocab_; first += kRowsAtOnce) {
    const auto ids = at::arange(first, std::min(vocab_, first + kRowsAtOnce), options_.dtype(at::kLong));
    hash.update(tensor_bytes_of(make_rows(ids, options_.dtype(at::kFloat)).cpu()));
  }
  return hash.hex();
}

std::string FixedTable::sample_hash() const {
  const int64_t count = std::min(vocab_, kSampleRows);
  const auto ids =
      (at::arange(count, options_.dtype(at::kLong)) * (vocab_ - 1)).floor_divide(std::max<int64_t>(count - 1, 1));
  Sha256 hash;
  hash.update(tensor_bytes_of(make_rows(ids, options_.dtype(at::kFloat)).cpu()));
  return hash.hex();
}

}  // namespace thinpipe
