// T_fixed, the frozen full-rank token table (METHOD 1). It is given, as read from a file
// (pipeline/table_file.h), or every node makes the rows it needs from the run's seed. With a seed, row t is anchor_std
// * unit_variance of stream ("t_fixed" + t), element by element (docs/rng.md); the product is rounded to double and
// then to the run's type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace thinpipe {

class FixedTable {
 public:
  // Small tables (kMostFixedTableBytes) are made when the first rows are asked for, and kept; rows of larger ones are
  // made on demand. One thread at a time.
  FixedTable(uint64_t seed, int64_t vocab, int64_t d, double anchor_std, const at::TensorOptions& options);
  // A given table: (V, d) float32, from an imported model.
  FixedTable(const at::Tensor& table, const at::TensorOptions& options);

  // ids: (n) int64 in [0, V) -> (n, d)
  at::Tensor rows(const at::Tensor& ids) const;
  // The whole table, (V, d): the initial value of a trainable anchor table.
  at::Tensor whole() const;
  // SHA-256 over the rows as little-endian float32: the name of a table in a file.
  std::string hash() const;
  // The hash of 256 evenly spread rows, including the first and the last: fast for any vocabulary.
  std::string sample_hash() const;

 private:
  at::Tensor make_rows(const at::Tensor& ids, const at::TensorOptions& options) const;

  uint64_t seed_ = 0;
  int64_t vocab_;
  int64_t d_;
  double anchor_std_ = 0;
  at::TensorOptions options_;
  bool given_ = false;
  bool keeps_ = false;
  mutable at::Tensor cached_;  // (V, d) or undefined
};

}  // namespace thinpipe
