// One transformer block: x += attention(norm(x)) W_p1, then x += swiglu(norm(x)) W_p2. Pre-norm, no biases.
// Forward keeps what backward needs in a BlockPass, so any number of microbatches may be in flight at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/run_config.h"
#include "model/kernels/ops.h"
#include "model/parameter.h"
#include "model/products.h"

namespace thinpipe {

// What all blocks of a stage share for one microbatch.
struct BlockContext {
  AttentionShape shape;
  const RopeTable* rope;  // null: positions are in the stream already
  Products products;
};

// A normalised input product, Y = (x * s o g) W, as it is kept for backward.
struct InputPass {
  at::Tensor x;  // (BT, d)
  at::Tensor h;  // (BT, d)
  at::Tensor s;  // (BT)
};

// q or k of a microbatch before and after its per-head norm.
struct QkNormPass {
  at::Tensor raw;  // (BT * heads, head_dim)
  at::Tensor s;    // (BT * heads)
};

struct BlockPass {
  InputPass attention_input;
  QkNormPass q_norm, k_norm;
  at::Tensor qkv;  // (BT, q + k + v), normalised and rotated
  Attended attended;
  InputPass mlp_input;
  at::Tensor gate_up;  // (BT, 2m)
  at::Tensor hidden;   // (BT, m)
};

class Block {
 public:
  // Adds its parameters to `parameters`, which must outlive it.
  Block(const ModelConfig& config, int64_t index, ParameterSet& parameters);

  // x: (BT, d) -> (BT, d). `pass` may be null when no backward follows.
  at::Tensor forward(const at::Tensor& x, const BlockContext& context, BlockPass* pass) const;
  // dL/d(output) -> dL/dx, adding to the parameters' gradients. Consumes `grad`.
  at::Tensor backward(at::Tensor grad, const BlockContext& context, const BlockPass& pass);

 private:
  at::Tensor read(const at::Tensor& x, const Parameter& gain, const Parameter& weight, const BlockContext& context,
                  InputPass& pass) const;
  // Adds to the stream's gradient in place.
  void read_backward(const at::Tensor& dy, Parameter& gain, Parameter& weight, const BlockContext& context,
                     const InputPass& pass, at::Tensor& grad);
  void normalise_qk(at::Tensor& qkv, const AttentionShape& shape, BlockPass& pass) const;
  void normalise_qk_backward(at::Tensor& d_qkv, const AttentionShape& shape, const BlockPass& pass);

  double norm_eps_;
  Parameter& attention_gain_;  // (d)
  Parameter& wqkv_;            // (d, q + k + v)
  Parameter* q_gain_;          // (head_dim), null without qk-norm
  Parameter* k_gain_;
  Parameter& wp1_;       // (q, d)
  Parameter& mlp_gain_;  // (d)
  Parameter& wgu_;       // (d, 2m), gate | up
  Parameter& wp2_;       // (m, d)
};

}  // namespace thinpipe
