// The model written a second time, to be compared with: uncut, the residual stream d wide, the output projections and
// the embedding materialised (W_p = A U^T, T_S = E U^T), gradients by libtorch's autograd. It shares no code with
// src/model beyond the names of the parameters. Slow and memory-hungry; for exactness checks only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

using TensorMap = std::map<std::string, at::Tensor>;

// A model's weights with every W_p and T_S d wide: "blocks.i.wp1", "blocks.i.wp2", "token_table" (V, d) in place of
// "blocks.i.a1", "blocks.i.a2", "embedding_coordinates". What has no coordinates is unchanged.
TensorMap materialise(const ModelConfig& config, const TensorMap& parameters, const at::Tensor& u);

struct ReferenceResult {
  double loss_sum;
  TensorMap gradients;       // of loss_scale * loss_sum, by the names in `weights`
  at::Tensor second_moment;  // (d, d) sum of G^T G at the tap: the stream entering block L - n (L - 1 when n = 0)
};

// weights: from materialise(), or of a dense model. t_fixed: (V, d), undefined for a dense model. tokens: (B, T+1)
// each.
ReferenceResult reference_gradients(const ModelConfig& config, const TensorMap& weights, const at::Tensor& t_fixed,
                                    const std::vector<at::Tensor>& tokens, double loss_scale);

}  // namespace thinpipe
