// One transformer block: stream += attention(read(stream)) W_p1, then stream += swiglu(read(stream)) W_p2. Pre-norm, no
// biases. The stream is x (d wide) or its coordinates c (k wide, METHOD 1). Both kinds of block differ only in how they
// read (reader.h) and in the width of the output projections: in coordinates W_p1 = A1 U^T is kept as A1 and the block
// computes c += H A1. The first block of a dense tail is both: its attention reads c, and adds to x = c U^T + e, which
// the block makes. So its first product goes through the anchor table too (METHOD 1b). Forward saves what backward
// needs in a BlockPass, so several microbatches may be in flight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "config/run_config.h"
#include "model/group.h"
#include "model/kernels/ops.h"
#include "model/parameter.h"
#include "model/reader.h"

namespace thinpipe {

// q or k of a microbatch before the per-head norm, and the norm's scales.
struct QkNormPass {
  at::Tensor raw;  // (BT * heads, head_dim)
  at::Tensor s;    // (BT * heads)
};

struct BlockPass {
  ReadPass attention_read;
  QkNormPass q_norm, k_norm;
  at::Tensor qkv;  // (BT, q + k + v), normalised and rotated
  Attended attended;
  ReadPass mlp_read;
  at::Tensor gate_up;  // (BT, 2m)
  at::Tensor hidden;   // (BT, m)
};

class Block {
 public:
  // Finds its parameters in `parameters`. `parameters` and `group` must outlive the block.
  Block(const ModelConfig& config, int64_t index, ParameterSet& parameters, TensorGroup& group);

  // stream: (BT, d or k) -> the same, or d if lifts(). `pass` may be null if no backward pass follows, as in
  // generation.
  at::Tensor forward(const at::Tensor& stream, const BlockContext& context, BlockPass* pass) const;
  // dL/d(output) -> dL/d(input); adds to the parameters' gradients. Consumes `grad`. If wide_gradient() holds, both are
  // gradients of x, d wide, although the stream is c.
  at::Tensor backward(at::Tensor grad, const BlockContext& context, const BlockPass& pass);

  bool wide_gradient() const { return wide_gradient_; }

 private:
  void normalise_qk(at::Tensor& qkv, const AttentionShape& shape, BlockPass& pass) const;
  void normalise_qk_backward(at::Tensor& d_qkv, const AttentionShape& shape, const BlockPass& pass);
  // What attention's output is added to: the stream, lifted if this block lifts.
  at::Tensor residual(const at::Tensor& stream, const BlockContext& context) const;
  // dL/d(hidden) of stream += hidden W; adds to the gradient of W.
  at::Tensor write_backward(const at::Tensor& grad, const at::Tensor& hidden, Parameter& weight,
                            const BlockContext& context);

  int64_t index_;
  double norm_eps_;
  bool lifts_;          // the first block of the dense tail
  bool wide_gradient_;  // the tap is this block's input, and the basis moves: dL/dx itself is needed (METHOD 3)
  TensorGroup* group_;
  std::unique_ptr<StreamReader> attention_reader_;
  Parameter* q_gain_ = nullptr;  // (head_dim), null without qk-norm
  Parameter* k_gain_ = nullptr;
  Parameter* wp1_;  // W_p1 (q, d), or A1 (q, k)
  std::unique_ptr<StreamReader> mlp_reader_;
  Parameter* wp2_;  // W_p2 (m, d), or A2 (m, k)
};

}  // namespace thinpipe
