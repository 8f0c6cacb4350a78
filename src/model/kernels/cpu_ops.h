// The fused CPU side of ops.h: checks, splits rows over threads, calls the kernels. Only kernels/ includes this.
#pragma once

#include "model/kernels/ops.h"

namespace thinpipe::cpu_ops {

// Whether the kernels can take this tensor: float32 or float64, on a CPU.
bool can_run(const at::Tensor& tensor);

Normed rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps);
void rms_norm_backward(const at::Tensor& dh, const at::Tensor& x, const at::Tensor& s, const at::Tensor& gain,
                       at::Tensor& dx, at::Tensor& d_gain);
void rope_(const at::Tensor& qk, const RopeTable& table, int64_t heads, int64_t head_dim, bool inverse);
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);
Attended attention(const at::Tensor& qkv, const AttentionShape& shape);
at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape);
double cross_entropy_(at::Tensor& logits, const at::Tensor& targets, bool gradient, double scale);

void table_read_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& table,
                 const TokenIndex& tokens);
TableGradient table_read_backward(const at::Tensor& dy, const at::Tensor& b, const at::Tensor& table,
                                  const TokenIndex& tokens);
void gain_product_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gain, at::Tensor& d_weight,
                           at::Tensor& d_gain);

}  // namespace thinpipe::cpu_ops
