#include "model/subspace_side.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace thinpipe {

std::vector<int64_t> anchor_group_starts(const ModelConfig& config) {
  std::vector<int64_t> starts{0};
  if (config.subspace.anchors == Anchors::kFixed) return starts;
  for (const int64_t blocks : config.subspace.anchor_groups) starts.push_back(starts.back() + blocks);
  if (starts.back() == config.blocks) starts.pop_back();
  return starts;
}

SubspaceSide::SubspaceSide(const ModelConfig& config, int64_t vocab, int64_t first, int64_t last, uint64_t seed,
                           ParameterSet& parameters, const at::Tensor& table)
    : config_(config), options_(parameters.options()) {
  set_basis(make_basis(seed, config.d, config.subspace.rank));
  const auto fixed = table.defined() ? std::make_shared<const FixedTable>(table, parameters.options())
                                     : std::make_shared<const FixedTable>(
                                           seed, vocab, config.d, config.subspace.anchor_std, parameters.options());
  const auto all = anchor_group_starts(config);
  for (size_t group = 0; group < all.size(); ++group) {
    const int64_t end = group + 1 < all.size() ? all[group + 1] : config.blocks;
    // A group that lies wholly in the dense tail has no coordinates to anchor.
    if (end <= first || all[group] >= last || all[group] > config.first_dense_block()) continue;
    starts_.push_back(all[group]);
    tables_.emplace_back(config, fmt::format("anchors.{}", group), fixed, parameters);
  }
}

void SubspaceSide::set_basis(Basis basis) {
  basis_ = std::move(basis);
  next_basis_.reset();
  u_ = basis_.u.to(options_.device(), options_.dtype().toScalarType());
}

std::vector<AnchorRows> SubspaceSide::anchor_rows(const at::Tensor& inputs, int64_t length, int64_t first) const {
  std::vector<AnchorRows> rows;
  for (const auto& table : tables_) rows.push_back(table.rows(inputs, length, u_, first));
  return rows;
}

void SubspaceSide::anchors_backward(const std::vector<AnchorRows>& rows) {
  for (size_t i = 0; i < tables_.size(); ++i) tables_[i].backward(rows[i], u_);
}

size_t SubspaceSide::group_of(int64_t index) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), index);
  return static_cast<size_t>(next - starts_.begin()) - 1;
}

at::Tensor SubspaceSide::lift(const at::Tensor& c, const AnchorRows& rows) const {
  return at::addmm(rows.per_row(), c, u_.t());
}

void SubspaceSide::lift_backward_to_anchors(const at::Tensor& grad, AnchorRows& rows) const {
  if (rows.trainable()) rows.d_e.index_add_(0, rows.tokens.inverse, grad);
}

void SubspaceSide::tap(const at::Tensor& grad) {
  if (config_.subspace.update_every == 0) return;
  if (!pending_.defined()) pending_ = at::zeros({config_.d, config_.d}, options_);
  pending_.addmm_(grad.t(), grad);
}

at::Tensor SubspaceSide::second_moment_with_pending() const {
  auto c = at::zeros({config_.d, config_.d}, options_);
  if (second_moment_.defined()) c.add_(second_moment_);
  if (pending_.defined()) c.add_(pending_);
  return c;
}

void SubspaceSide::commit_tap() {
  if (!pending_.defined()) return;
  second_moment_ = second_moment_.defined() ? second_moment_.add_(pending_) : pending_;
  pending_.reset();
}

}  // namespace thinpipe
