// Picks the fused CPU kernel or the ATen twin, by the tensor at hand.
#include "model/kernels/ops.h"

#include <ATen/ATen.h>

#include "model/kernels/cpu_ops.h"

namespace thinpipe {

RopeTable make_rope_table(int64_t positions, int64_t head_dim, double base, const at::TensorOptions& options) {
  const auto wide = options.dtype(at::kDouble);
  const auto frequency = at::pow(base, at::arange(0, head_dim, 2, wide) / -static_cast<double>(head_dim));
  const auto angle = at::arange(positions, wide).unsqueeze(1) * frequency;  // (T, head_dim/2)
  return {angle.cos().to(options.dtype()), angle.sin().to(options.dtype())};
}

TokenIndex index_tokens(const at::Tensor& ids) {
  const auto [unique, inverse, counts] =
      at::_unique2(ids, /*sorted=*/true, /*return_inverse=*/true, /*return_counts=*/true);
  const auto order = std::get<1>(inverse.sort(/*stable=*/true, 0, /*descending=*/false));
  return {unique, inverse, order, at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)})};
}

namespace ops {

Normed rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps) {
  return cpu_ops::can_run(x) ? cpu_ops::rms_norm(x, gain, eps) : aten_ops::rms_norm(x, gain, eps);
}

void rms_norm_backward(const at::Tensor& dh, const at::Tensor& x, const at::Tensor& s, const at::Tensor& gain,
                       at::Tensor& dx, at::Tensor& d_gain) {
  const auto run = cpu_ops::can_run(x) ? cpu_ops::rms_norm_backward : aten_ops::rms_norm_backward;
  run(dh, x, s, gain, dx, d_gain);
}

void rope_(const at::Tensor& qk, const RopeTable& table, int64_t heads, int64_t head_dim, bool inverse) {
  const auto run = cpu_ops::can_run(qk) ? cpu_ops::rope_ : aten_ops::rope_;
  run(qk, table, heads, head_dim, inverse);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  return cpu_ops::can_run(gate_up) ? cpu_ops::swiglu(gate_up) : aten_ops::swiglu(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  return cpu_ops::can_run(gate_up) ? cpu_ops::swiglu_backward(dy, gate_up) : aten_ops::swiglu_backward(dy, gate_up);
}

Attended attention(const at::Tensor& qkv, const AttentionShape& shape) {
  return cpu_ops::can_run(qkv) ? cpu_ops::attention(qkv, shape) : aten_ops::attention(qkv, shape);
}

at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape) {
  return cpu_ops::can_run(qkv) ? cpu_ops::attention_backward(d_output, qkv, forward, shape)
                               : aten_ops::attention_backward(d_output, qkv, forward, shape);
}

double cross_entropy_(at::Tensor& logits, const at::Tensor& targets, bool gradient, double scale) {
  const auto run = cpu_ops::can_run(logits) ? cpu_ops::cross_entropy_ : aten_ops::cross_entropy_;
  return run(logits, targets, gradient, scale);
}

void table_read_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& table,
                 const TokenIndex& tokens) {
  const auto run = cpu_ops::can_run(y) ? cpu_ops::table_read_ : aten_ops::table_read_;
  run(y, a, b, table, tokens);
}

TableGradient table_read_backward(const at::Tensor& dy, const at::Tensor& b, const at::Tensor& table,
                                  const TokenIndex& tokens) {
  const auto run = cpu_ops::can_run(dy) ? cpu_ops::table_read_backward : aten_ops::table_read_backward;
  return run(dy, b, table, tokens);
}

void gain_product_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gain, at::Tensor& d_weight,
                           at::Tensor& d_gain) {
  const auto run = cpu_ops::can_run(x) ? cpu_ops::gain_product_backward : aten_ops::gain_product_backward;
  run(x, weight, gain, d_weight, d_gain);
}

}  // namespace ops
}  // namespace thinpipe
