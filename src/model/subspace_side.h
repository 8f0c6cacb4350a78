// What a stage of a subspace model has besides its blocks: the basis, the anchors of its groups, the lift from
// coordinates to x before the head of a model without a dense tail, and the tap that collects the gradient's second
// moment (METHOD 1, 3, 5).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "model/anchors.h"
#include "model/basis.h"

namespace thinpipe {

class SubspaceSide {
 public:
  // For a stage with these blocks; `fixed` is T_fixed. Trainable anchor tables come from `parameters`.
  SubspaceSide(const ModelConfig& config, BlockRange range, uint64_t seed,
               const std::shared_ptr<const FixedTable>& fixed, const at::TensorOptions& options,
               ParameterSet& parameters);

  const Basis& basis() const { return basis_; }
  const at::Tensor& u() const { return u_; }  // in the run's type
  void set_basis(Basis basis);

  // One AnchorRows per group of the stage, in order.
  std::vector<AnchorRows> anchor_rows(const AnchorIndex& index) const;
  void anchors_backward(std::vector<AnchorRows>& rows);
  // The index in that list of the group that block `index` reads (index L: the head of a model without a tail).
  size_t group_of(int64_t index) const;

  // x = c U^T + e: (BT, k) -> (BT, d).
  at::Tensor lift(const at::Tensor& c, const AnchorRows& rows) const;
  // The backward pass of lift: dL/dx -> dL/dc = G U, and the part of G that belongs to e.
  at::Tensor lower(const at::Tensor& grad) const { return grad.mm(u_); }
  void lift_backward_to_anchors(const at::Tensor& grad, AnchorRows& rows) const;

  // The tap. The gradients of a step (BT, d), times grad_factor as in the update, are added to C when the step is
  // committed. begin_step discards those of an abandoned attempt. Without `gather` (no later update of the basis needs
  // the step) the tap is closed.
  void begin_step(bool gather);
  void tap(const at::Tensor& grad);
  void commit_tap(double grad_factor);
  void drop_tap() {
    pending_.reset();
    next_basis_.reset();
  }
  // C (d, d) over the committed steps since it was last cleared; undefined if there were none.
  const at::Tensor& second_moment() const { return second_moment_; }
  // The same, or zeros if there were none.
  at::Tensor second_moment_or_zeros() const;
  void set_second_moment(at::Tensor c) { second_moment_ = std::move(c); }

  // Whether step `step` updates the basis, and the basis that the current step updates to: it is set at the end of the
  // step and used from its commit on. drop_tap() and set_basis() discard it.
  bool moves_at(int64_t step) const {
    const int64_t every = config_.subspace.update_every;
    return every > 0 && (step + 1) % every == 0;
  }
  const std::optional<Basis>& next_basis() const { return next_basis_; }
  void set_next_basis(Basis next) { next_basis_ = std::move(next); }

 private:
  ModelConfig config_;
  at::TensorOptions options_;
  Basis basis_;
  at::Tensor u_;
  std::vector<int64_t> starts_;  // of this stage's groups
  std::vector<AnchorTable> tables_;
  bool gather_ = false;
  at::Tensor second_moment_, pending_;
  std::optional<Basis> next_basis_;
};

}  // namespace thinpipe
