#include "model/kv_cache.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/result.h"

namespace thinpipe {

KvCache::KvCache(const ModelConfig& config, int64_t capacity, const at::TensorOptions& options)
    : capacity_(capacity), ids_(at::empty({capacity}, options.dtype(at::kLong))) {
  if (config.positions == Positions::kRope) {
    rope_ = make_rope_table(capacity, config.head_dim(), config.rope_base, options);
  }
  for (int64_t block = 0; block < config.blocks; ++block) {
    blocks_.push_back({at::empty({config.kv_heads, capacity, config.head_dim()}, options),
                       at::empty({config.kv_heads, capacity, config.head_dim()}, options)});
  }
}

void KvCache::shorten(int64_t length) {
  TP_CHECK(0 <= length && length <= length_, "a cache of {} tokens cannot be shortened to {}", length_, length);
  length_ = length;
}

std::optional<RopeTable> KvCache::rope(int64_t rows) const {
  if (!rope_) return std::nullopt;
  return RopeTable{rope_->cos.narrow(0, length_, rows), rope_->sin.narrow(0, length_, rows)};
}

at::Tensor KvCache::attend(int64_t block, const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t rows = qkv.size(0), seen = length_ + rows, hd = shape.head_dim, group = shape.heads / shape.kv_heads;
  auto& entry = blocks_[static_cast<size_t>(block)];
  const auto heads_of = [&](int64_t column, int64_t heads) {  // (heads, rows, hd)
    return qkv.narrow(1, column, heads * hd).view({rows, heads, hd}).transpose(0, 1);
  };
  entry.k.narrow(1, length_, rows).copy_(heads_of(shape.query_width(), shape.kv_heads));
  entry.v.narrow(1, length_, rows).copy_(heads_of(shape.query_width() + shape.kv_width(), shape.kv_heads));
  // The query heads of one key/value head are stacked: one product per key/value head.
  const auto q = heads_of(0, shape.heads).reshape({shape.kv_heads, group * rows, hd});
  auto scores = at::bmm(q, entry.k.narrow(1, 0, seen).transpose(1, 2)).div_(std::sqrt(static_cast<double>(hd)));
  if (rows > 1) {
    const auto future = at::ones({rows, seen}, scores.options().dtype(at::kBool)).triu(length_ + 1);
    scores.view({shape.kv_heads, group, rows, seen}).masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  const auto output = at::bmm(scores.softmax(2), entry.v.narrow(1, 0, seen));  // (kv_heads, group * rows, hd)
  return output.view({shape.heads, rows, hd}).transpose(0, 1).reshape({rows, shape.query_width()});
}

void KvCache::grow(const at::Tensor& ids) {
  const int64_t rows = ids.size(0);
  TP_CHECK(rows <= capacity_ - length_, "{} more tokens in a cache of {} that holds {}", rows, capacity_, length_);
  ids_.narrow(0, length_, rows).copy_(ids);
  length_ += rows;
}

at::Tensor KvCache::last_id() const { return length_ > 0 ? ids_.narrow(0, length_ - 1, 1) : at::Tensor(); }

}  // namespace thinpipe
