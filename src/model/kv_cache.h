// Keys and values of the tokens that generation has read, for every block, so that the next token costs one row of work
// instead of the whole sequence. For one sequence, without a backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "model/kernels/ops.h"

namespace thinpipe {

class KvCache {
 public:
  // For at most `capacity` tokens of a model whose stages use `options`.
  KvCache(const ModelConfig& config, int64_t capacity, const at::TensorOptions& options);

  int64_t length() const { return length_; }  // tokens read so far
  int64_t capacity() const { return capacity_; }
  // Forgets the tokens from `length` on.
  void shorten(int64_t length);

  // The rest is for Stage::extend, which reads `rows` tokens at a time: every block attends, then the cache grows.

  // The rotation for the positions of those tokens; empty if positions are not rotary.
  std::optional<RopeTable> rope(int64_t rows) const;
  // qkv: (rows, q + k + v), rotated, of the tokens after those read so far -> (rows, heads * head_dim). Each row
  // attends to all tokens up to itself.
  at::Tensor attend(int64_t block, const at::Tensor& qkv, const AttentionShape& shape);
  void grow(const at::Tensor& ids);  // (rows) int64
  // The last token read, (1) int64; undefined before the first.
  at::Tensor last_id() const;

 private:
  struct Entry {
    at::Tensor k, v;  // (kv_heads, capacity, head_dim)
  };

  int64_t capacity_;
  int64_t length_ = 0;
  at::Tensor ids_;  // (capacity) int64, of the tokens read
  std::optional<RopeTable> rope_;
  std::vector<Entry> blocks_;
};

}  // namespace thinpipe
