// The paper's optimizer taken literally, d wide (METHOD 2, 3): W_p and T_S materialised, gradients projected on S, one
// second moment per row, Grassmann change of basis by projection. It is the naive twin of the coordinate form, of the
// Grassmann step and of clipping, and shares no code with src/optim and src/model except the type of a basis.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "lab/reference_model.h"
#include "model/basis.h"

namespace thinpipe {

enum class LiteralRule {
  kRowAdamw,  // as in the paper: a row's update is its momentum times a scalar, so W stays in S
  kAdamw,     // per-element moments on the same projected gradient: W leaves S
};

class LiteralTraining {
 public:
  // weights: from materialise(). The schedule must be constant; there may be a warm-up.
  LiteralTraining(const RunConfig& config, TensorMap weights, at::Tensor t_fixed, Basis basis, LiteralRule rule);

  // One optimizer step on these microbatches, with a change of basis if the config says so. Returns the mean loss.
  double step(int64_t number, const std::vector<at::Tensor>& tokens);

  const TensorMap& weights() const { return weights_; }
  const Basis& basis() const { return basis_; }
  // Largest ||W - W UU^T|| / ||W|| over the confined matrices.
  double drift() const;

 private:
  bool confined(const std::string& name) const;
  at::Tensor project(const at::Tensor& rows) const { return rows.mm(basis_.u).mm(basis_.u.t()); }
  void update(const std::string& name, const at::Tensor& gradient, int64_t number);
  void change_over();

  RunConfig config_;
  TensorMap weights_, m_, v_;
  at::Tensor t_fixed_;
  Basis basis_;
  LiteralRule rule_;
  at::Tensor second_moment_;
};

}  // namespace thinpipe
