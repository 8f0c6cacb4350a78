// e, the anchor of the coordinates (METHOD 1, 5): x = c U^T + e, where e is the token's row of an anchor table, plus
// its position's sinusoids if positions are sinusoidal. There is one AnchorTable per anchor group, and one AnchorRows
// per microbatch and group, which all blocks of the group share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "config/run_config.h"
#include "model/fixed_table.h"
#include "model/kernels/ops.h"
#include "model/parameter.h"

namespace thinpipe {

// The anchors of one microbatch with u distinct tokens. With rotary positions the position parts are undefined.
struct AnchorRows {
  TokenIndex tokens;
  at::Tensor e;            // (u, d) the distinct tokens' rows
  at::Tensor positions;    // (T, d) sinusoids
  at::Tensor coordinates;  // (BT, k) e U of each row, including its position
  at::Tensor squared;      // (BT) ||e||^2, including its position

  // Gradients, summed over the group's reads if the table is trainable; otherwise undefined.
  at::Tensor d_e;            // (u, d)
  at::Tensor d_coordinates;  // (BT, k) of c . (e U)
  at::Tensor d_squared;      // (BT) of ||e||^2

  bool trainable() const { return d_e.defined(); }
  at::Tensor per_row() const;  // (BT, d): e of each row
};

class AnchorTable {
 public:
  // All groups share `fixed`. `table` is the group's trainable table; null if anchors are fixed.
  AnchorTable(const ModelConfig& config, std::shared_ptr<const FixedTable> fixed, Parameter* table);

  // inputs: (BT) ids; length: T; u: (d, k); first: the position of a sequence's first token
  AnchorRows rows(const at::Tensor& inputs, int64_t length, const at::Tensor& u, int64_t first = 0) const;
  // Adds the gradients that the group's reads left in `rows` to the trainable table's gradient. Fixed tables: no
  // effect.
  void backward(const AnchorRows& rows, const at::Tensor& u);

 private:
  ModelConfig config_;
  std::shared_ptr<const FixedTable> fixed_;
  Parameter* table_;  // (V, d), or null
};

// (count, d): position_scale times sin and cos of the positions from `first` on, at d/2 frequencies; first all sines,
// then all cosines.
at::Tensor sinusoids(const ModelConfig& config, int64_t first, int64_t count, const at::TensorOptions& options);

}  // namespace thinpipe
