#include "model/anchors.h"

#include <ATen/ATen.h>

namespace thinpipe {

at::Tensor sinusoids(const ModelConfig& config, int64_t first, int64_t count, const at::TensorOptions& options) {
  const auto table = make_rope_table(first + count, config.d, 10000.0, options.dtype(at::kDouble));
  const auto rows = at::cat({table.sin, table.cos}, 1).narrow(0, first, count) * config.position_scale;
  return rows.to(options.dtype());
}

at::Tensor AnchorRows::per_row() const {
  auto rows = e.index_select(0, tokens.inverse);
  if (positions.defined()) rows.view({-1, positions.size(0), positions.size(1)}).add_(positions);
  return rows;
}

AnchorTable::AnchorTable(const ModelConfig& config, std::shared_ptr<const FixedTable> fixed, Parameter* table)
    : config_(config), fixed_(std::move(fixed)), table_(table) {}

AnchorRows AnchorTable::rows(const at::Tensor& inputs, int64_t length, const at::Tensor& u, int64_t first) const {
  AnchorRows rows;
  rows.tokens = index_tokens(inputs);
  rows.e = table_ != nullptr ? table_->value.index_select(0, rows.tokens.unique) : fixed_->rows(rows.tokens.unique);
  rows.coordinates = rows.e.mm(u).index_select(0, rows.tokens.inverse);
  rows.squared = rows.e.square().sum(1).index_select(0, rows.tokens.inverse);
  if (config_.positions == Positions::kSinusoidal) {
    rows.positions = sinusoids(config_, first, length, rows.e.options());
    rows.coordinates.view({-1, length, u.size(1)}).add_(rows.positions.mm(u));
    // ||t + p||^2 in parts; the cross term is the only d-wide work per row, once per microbatch.
    const auto cross =
        (rows.e.index_select(0, rows.tokens.inverse).view({-1, length, config_.d}) * rows.positions).sum(2);
    rows.squared.view({-1, length}).add_(cross.mul(2)).add_(rows.positions.square().sum(1));
  }
  if (table_ != nullptr) {
    rows.d_e = at::zeros_like(rows.e);
    rows.d_coordinates = at::zeros_like(rows.coordinates);
    rows.d_squared = at::zeros_like(rows.squared);
  }
  return rows;
}

void AnchorTable::backward(const AnchorRows& rows, const at::Tensor& u) {
  if (table_ == nullptr) return;
  const auto& inverse = rows.tokens.inverse;
  // d(c . e U) and d||e||^2 = 2 e per row, summed over the rows of each token before they are expanded to d.
  auto d_e = rows.d_e +
             at::zeros({rows.e.size(0), u.size(1)}, u.options()).index_add_(0, inverse, rows.d_coordinates).mm(u.t());
  const auto weight = at::zeros({rows.e.size(0)}, u.options()).index_add_(0, inverse, rows.d_squared).mul_(2);
  d_e.addcmul_(rows.e, weight.unsqueeze(1));
  if (rows.positions.defined()) {
    const auto pull =
        rows.positions.repeat({inverse.size(0) / rows.positions.size(0), 1}).mul_(rows.d_squared.mul(2).unsqueeze(1));
    d_e.index_add_(0, inverse, pull);
  }
  table_->grad.index_add_(0, rows.tokens.unique, d_e);
}

}  // namespace thinpipe
