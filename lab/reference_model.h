// A second implementation of the model for comparison: uncut, with a d-wide residual stream, output projections and
// embedding materialised (W_p = A U^T, T_S = E U^T), and gradients by libtorch's autograd. It shares only the names of
// the parameters with src/model. Slow and memory-hungry; for exactness checks only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

using TensorMap = std::map<std::string, at::Tensor>;

// A model's weights with every W_p and T_S d wide: "blocks.i.wp1", "blocks.i.wp2", "token_table" (V, d) replace
// "blocks.i.a1", "blocks.i.a2", "embedding_coordinates". Parameters without coordinates are unchanged.
TensorMap materialise(const ModelConfig& config, const TensorMap& parameters, const at::Tensor& u);

struct ReferenceResult {
  double loss_sum;
  TensorMap gradients;       // of loss_scale * loss_sum, by the names in `weights`
  at::Tensor second_moment;  // (d, d) sum of G^T G at the tap: the stream entering block L - n (L - 1 when n = 0)
};

// weights: from materialise(), or those of a dense model. t_fixed: (V, d), undefined for a dense model. tokens: (B,
// T+1) each.
ReferenceResult reference_gradients(const ModelConfig& config, const TensorMap& weights, const at::Tensor& t_fixed,
                                    const std::vector<at::Tensor>& tokens, double loss_scale);

}  // namespace thinpipe
