// The end of the model: final norm, head product, cross entropy. The logits of a microbatch (BT x V) would be the
// largest tensor, so they are computed, used and dropped one slice of rows at a time, together with their gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/run_config.h"
#include "model/parameter.h"
#include "model/products.h"

namespace thinpipe {

class Head {
 public:
  Head(const ModelConfig& config, ParameterSet& parameters);

  // Sum over the rows of -log p(target).      x: (BT, d); targets: (BT) int64
  double loss(const at::Tensor& x, const at::Tensor& targets, const Products& products) const;
  // The same, and dL/dx of L = scale * that sum; adds to the gradients of the gain and of the head.
  double loss_and_gradient(const at::Tensor& x, const at::Tensor& targets, const Products& products, double scale,
                           at::Tensor& grad);

  at::Tensor logits(const at::Tensor& x, const Products& products) const;  // (BT, V)

 private:
  double norm_eps_;
  Parameter& gain_;    // (d)
  Parameter& weight_;  // (d, V)
};

}  // namespace thinpipe
