// T_fixed, the frozen full-rank token table (METHOD 1): every node derives the rows it needs from the run's seed, or,
// in a run that began from an imported model, has all of them from a file. Of the seed, row t is anchor_std *
// unit_variance of stream ("t_fixed" + t), element by element (docs/rng.md), the product rounded to double and then to
// the run's type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace thinpipe {

class FixedTable {
 public:
  // Small tables (kMostFixedTableBytes) are made once and kept; of larger ones, rows are made when asked for.
  FixedTable(uint64_t seed, int64_t vocab, int64_t d, double anchor_std, const at::TensorOptions& options);
  // Given as it is: (V, d) float32, the numbers of an imported model.
  FixedTable(const at::Tensor& table, const at::TensorOptions& options);

  // ids: (n) int64 in [0, V) -> (n, d)
  at::Tensor rows(const at::Tensor& ids) const;
  // All of it, (V, d): the first value of a trainable anchor table.
  at::Tensor whole() const;
  // SHA-256 over the rows as little-endian float32: the name of a table that is a file.
  std::string hash() const;
  // Over 256 rows spread evenly, the first and the last among them: quick however large the vocabulary is.
  std::string sample_hash() const;

 private:
  at::Tensor make_rows(const at::Tensor& ids, const at::TensorOptions& options) const;

  uint64_t seed_ = 0;
  int64_t vocab_;
  int64_t d_;
  double anchor_std_ = 0;
  at::TensorOptions options_;
  bool given_ = false;
  at::Tensor cached_;  // (V, d) or undefined
};

}  // namespace thinpipe
