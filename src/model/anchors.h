// e, the anchor of the coordinates (METHOD 1, 5): x = c U^T + e. The anchor of a row is a sum of rows of a few tables:
// its token's row, with `subspace.previous` the previous token's row of a second table, and its position's sinusoids if
// positions are sinusoidal. There is one AnchorTable per anchor group, and one AnchorRows per microbatch and group,
// which all blocks of the group share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "model/fixed_table.h"
#include "model/kernels/ops.h"
#include "model/parameter.h"

namespace thinpipe {

// One of the tables that add up to e, reduced to the rows that a microbatch uses: row r of the microbatch gets row
// index.inverse[r].
struct AnchorPart {
  TokenIndex index;
  at::Tensor e;    // (u, d)
  at::Tensor d_e;  // (u, d) its gradient, summed over the group's reads; undefined if the part is not trained
};

// The anchors of one microbatch.
struct AnchorRows {
  std::vector<AnchorPart> parts;
  at::Tensor coordinates;  // (BT, k) e U of each row
  at::Tensor squared;      // (BT) ||e||^2

  // Gradients, summed over the group's reads if a part is trained; otherwise undefined.
  at::Tensor d_coordinates;  // (BT, k) of c . (e U)
  at::Tensor d_squared;      // (BT) of ||e||^2

  bool trainable() const { return d_squared.defined(); }
  // The number of distinct rows of all parts together.
  int64_t distinct() const;
  at::Tensor per_row() const;  // (BT, d): e of each row
  // Adds dL/de of each row, (BT, d), to the parts that are trained.
  void add_gradient(const at::Tensor& d_e);
};

// What the rows of a microbatch refer to: the same for every group.
struct AnchorIndex {
  TokenIndex tokens;
  TokenIndex previous;   // undefined without a previous-token table
  TokenIndex positions;  // undefined with rotary positions
  int64_t first = 0;     // the position of a sequence's first token
};

// A trained table of a group.
struct TrainedTable {
  Parameter* rows = nullptr;  // (V, d), or with subspace.anchor_rank (V, r); null: there is no such table
  Parameter* map = nullptr;   // (r, d): the table is rows times map; null: rows are the table

  at::Tensor gather(const at::Tensor& ids) const;                   // (u) -> (u, d)
  void backward(const at::Tensor& ids, const at::Tensor& d_e) const;  // adds to the parameters' gradients
};

class AnchorTable {
 public:
  // All groups share `fixed`, which a token table with a map is added to and any other replaces.
  AnchorTable(const ModelConfig& config, std::shared_ptr<const FixedTable> fixed, TrainedTable tokens,
              TrainedTable previous);

  AnchorRows rows(const AnchorIndex& index, const at::Tensor& u) const;  // u: (d, k)
  // Adds the gradients that the group's reads left in `rows` to those of the trainable tables.
  void backward(AnchorRows& rows, const at::Tensor& u);

 private:
  ModelConfig config_;
  std::shared_ptr<const FixedTable> fixed_;
  TrainedTable tokens_, previous_;
};

// inputs: (BT) ids of sequences of `length` tokens, whose first has position `first`. before: (B) the token before the
// first of each sequence; undefined at position 0, where a token counts as its own predecessor.
AnchorIndex index_anchors(const ModelConfig& config, const at::Tensor& inputs, int64_t length, int64_t first = 0,
                          const at::Tensor& before = {});

// (count, d): position_scale times sin and cos of the positions from `first` on, at d/2 frequencies; first all sines,
// then all cosines.
at::Tensor sinusoids(const ModelConfig& config, int64_t first, int64_t count, const at::TensorOptions& options);

}  // namespace thinpipe
