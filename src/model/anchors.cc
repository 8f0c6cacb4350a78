#include "model/anchors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace thinpipe {
namespace {

AnchorPart gathered(const TokenIndex& index, const Parameter& table) {
  auto e = table.value.index_select(0, index.unique);
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

AnchorTable::AnchorTable(const ModelConfig& config, std::shared_ptr<const FixedTable> fixed, Parameter* tokens,
                         Parameter* previous)
    : config_(config), fixed_(std::move(fixed)), tokens_(tokens), previous_(previous) {}

AnchorRows AnchorTable::rows(const AnchorIndex& index, const at::Tensor& u) const {
  AnchorRows rows;
  rows.parts.push_back(tokens_ != nullptr ? gathered(index.tokens, *tokens_)
                                          : AnchorPart{index.tokens, fixed_->rows(index.tokens.unique), {}});
  if (previous_ != nullptr) rows.parts.push_back(gathered(index.previous, *previous_));
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
  const auto scatter = [](Parameter* table, const AnchorPart& part) {
    if (table != nullptr) table->grad.index_add_(0, part.index.unique, part.d_e);
  };
  scatter(tokens_, rows.parts[0]);
  if (previous_ != nullptr) scatter(previous_, rows.parts[1]);
}

}  // namespace thinpipe
