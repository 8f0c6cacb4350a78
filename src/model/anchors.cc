#include "model/anchors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace thinpipe {
namespace {

AnchorPart trained_part(const TokenIndex& index, at::Tensor e) {
  auto d_e = at::zeros_like(e);
  return {index, std::move(e), std::move(d_e)};
}

}  // namespace

at::Tensor sinusoids(const ModelConfig& config, int64_t first, int64_t count, const at::TensorOptions& options) {
  const auto table = make_rope_table(first + count, config.d, 10000.0, options.dtype(at::kDouble));
  const auto rows = at::cat({table.sin, table.cos}, 1).narrow(0, first, count) * config.position_scale;
  return rows.to(options.dtype());
}

AnchorIndex index_anchors(const ModelConfig& config, const at::Tensor& inputs, int64_t length, int64_t first,
                          const at::Tensor& before) {
  AnchorIndex index;
  index.tokens = index_tokens(inputs);
  index.first = first;
  if (config.subspace.previous != Previous::kNone) {
    const auto ids = inputs.view({-1, length});
    const auto start = before.defined() ? before.view({-1, 1}) : ids.narrow(1, 0, 1);
    index.previous = index_tokens(at::cat({start, ids.narrow(1, 0, length - 1)}, 1).view({-1}));
  }
  if (config.positions == Positions::kSinusoidal) {
    index.positions = index_tokens(at::arange(length, inputs.options()).repeat({inputs.size(0) / length}));
  }
  return index;
}

int64_t AnchorRows::distinct() const {
  int64_t rows = 0;
  for (const auto& part : parts) rows += part.e.size(0);
  return rows;
}

at::Tensor AnchorRows::per_row() const {
  auto rows = parts.front().e.index_select(0, parts.front().index.inverse);
  for (size_t i = 1; i < parts.size(); ++i) rows.add_(parts[i].e.index_select(0, parts[i].index.inverse));
  return rows;
}

void AnchorRows::add_gradient(const at::Tensor& d_e) {
  for (auto& part : parts) {
    if (part.d_e.defined()) part.d_e.index_add_(0, part.index.inverse, d_e);
  }
}

at::Tensor TrainedTable::gather(const at::Tensor& ids) const {
  const auto gathered = rows->value.index_select(0, ids);
  return map == nullptr ? gathered : gathered.mm(map->value);
}

void TrainedTable::backward(const at::Tensor& ids, const at::Tensor& d_e) const {
  if (map == nullptr) {
    rows->grad.index_add_(0, ids, d_e);
    return;
  }
  map->grad.addmm_(rows->value.index_select(0, ids).t(), d_e);
  rows->grad.index_add_(0, ids, d_e.mm(map->value.t()));
}

AnchorTable::AnchorTable(const ModelConfig& config, std::shared_ptr<const FixedTable> fixed, TrainedTable tokens,
                         TrainedTable previous)
    : config_(config), fixed_(std::move(fixed)), tokens_(tokens), previous_(previous) {}

AnchorRows AnchorTable::rows(const AnchorIndex& index, const at::Tensor& u) const {
  AnchorRows rows;
  const auto& tokens = index.tokens.unique;
  if (tokens_.rows == nullptr) {
    rows.parts.push_back({index.tokens, fixed_->rows(tokens), {}});
  } else {
    auto e = tokens_.gather(tokens);
    if (tokens_.map != nullptr) e.add_(fixed_->rows(tokens));
    rows.parts.push_back(trained_part(index.tokens, std::move(e)));
  }
  if (previous_.rows != nullptr) {
    rows.parts.push_back(trained_part(index.previous, previous_.gather(index.previous.unique)));
  }
  if (index.positions.unique.defined()) {
    const auto positions = sinusoids(config_, index.first, index.positions.unique.size(0), u.options());
    rows.parts.push_back({index.positions, positions, {}});
  }
  for (const auto& part : rows.parts) {
    const auto coordinates = part.e.mm(u).index_select(0, part.index.inverse);
    rows.coordinates = rows.coordinates.defined() ? rows.coordinates.add_(coordinates) : coordinates;
  }
  // Of a sum there is no shorter way than row by row; this is the only d-wide work per row, once per microbatch.
  const auto& first = rows.parts.front();
  rows.squared = rows.parts.size() > 1 ? rows.per_row().square_().sum(1)
                                       : first.e.square().sum(1).index_select(0, first.index.inverse);
  if (std::any_of(rows.parts.begin(), rows.parts.end(), [](const auto& part) { return part.d_e.defined(); })) {
    rows.d_coordinates = at::zeros_like(rows.coordinates);
    rows.d_squared = at::zeros_like(rows.squared);
  }
  return rows;
}

void AnchorTable::backward(AnchorRows& rows, const at::Tensor& u) {
  if (!rows.trainable()) return;
  // d(c . e U) and d||e||^2 = 2 e
  rows.add_gradient(rows.per_row().mul_(rows.d_squared.mul(2).unsqueeze(1)).addmm_(rows.d_coordinates, u.t()));
  tokens_.backward(rows.parts[0].index.unique, rows.parts[0].d_e);
  if (previous_.rows != nullptr) previous_.backward(rows.parts[1].index.unique, rows.parts[1].d_e);
}

}  // namespace thinpipe
