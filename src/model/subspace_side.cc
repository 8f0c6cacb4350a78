#include "model/subspace_side.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace thinpipe {

SubspaceSide::SubspaceSide(const ModelConfig& config, BlockRange range, uint64_t seed,
                           const std::shared_ptr<const FixedTable>& fixed, const at::TensorOptions& options,
                           ParameterSet& parameters)
    : config_(config), options_(options) {
  set_basis(make_basis(seed, config.d, config.subspace.rank));
  for (const auto& group : anchor_groups(config, range)) {
    starts_.push_back(group.first);
    const auto table = [&](const char* kind) {
      const auto name = fmt::format("{}.{}", kind, group.number);
      return TrainedTable{parameters.find(name), parameters.find(anchor_map_name(name))};
    };
    tables_.emplace_back(config, fixed, table("anchors"), table("previous"));
  }
}

void SubspaceSide::set_basis(Basis basis) {
  basis_ = std::move(basis);
  next_basis_.reset();
  u_ = basis_.u.to(options_.device(), options_.dtype().toScalarType());
}

std::vector<AnchorRows> SubspaceSide::anchor_rows(const AnchorIndex& index) const {
  std::vector<AnchorRows> rows;
  for (const auto& table : tables_) rows.push_back(table.rows(index, u_));
  return rows;
}

void SubspaceSide::anchors_backward(std::vector<AnchorRows>& rows) {
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
  if (rows.trainable()) rows.add_gradient(grad);
}

void SubspaceSide::begin_step(bool gather) {
  drop_tap();
  gather_ = gather;
}

void SubspaceSide::tap(const at::Tensor& grad) {
  if (!gather_) return;
  if (!pending_.defined()) pending_ = at::zeros({config_.d, config_.d}, options_);
  pending_.addmm_(grad.t(), grad);
}

at::Tensor SubspaceSide::second_moment_or_zeros() const {
  return second_moment_.defined() ? second_moment_ : at::zeros({config_.d, config_.d}, options_);
}

void SubspaceSide::commit_tap(double grad_factor) {
  if (!pending_.defined()) return;
  pending_.mul_(grad_factor * grad_factor);
  second_moment_ = second_moment_.defined() ? second_moment_.add_(pending_) : pending_;
  pending_.reset();
}

}  // namespace thinpipe
