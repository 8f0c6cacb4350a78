// The operations of ops.h in tensor algebra, for any device and floating type, without fusion. Also makes the tables
// that the operations read.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "model/kernels/ops.h"

namespace thinpipe {

RopeTable make_rope_table(int64_t positions, int64_t head_dim, double base, const at::TensorOptions& options) {
  const auto wide_options = options.dtype(at::kDouble);
  const auto frequency = at::pow(base, at::arange(0, head_dim, 2, wide_options) / -static_cast<double>(head_dim));
  const auto angle = at::arange(positions, wide_options).unsqueeze(1) * frequency;  // (T, head_dim/2)
  return {angle.cos().to(options.dtype()), angle.sin().to(options.dtype())};
}

TokenIndex index_tokens(const at::Tensor& ids) {
  const auto [unique, inverse, counts] =
      at::_unique2(ids, /*sorted=*/true, /*return_inverse=*/true, /*return_counts=*/true);
  const auto order = std::get<1>(inverse.sort(/*stable=*/true, 0, /*descending=*/false));
  return {unique, inverse, order, at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)})};
}

namespace aten_ops {
namespace {

struct Heads {
  at::Tensor q;  // (B, heads, T, head_dim)
  at::Tensor k;  // (B, heads, T, head_dim), each key head repeated for its group
  at::Tensor v;
};

at::Tensor split_heads(const at::Tensor& columns, const AttentionShape& shape, int64_t heads) {
  return columns.reshape({shape.sequences, shape.length, heads, shape.head_dim}).transpose(1, 2);
}

Heads split(const at::Tensor& qkv, const AttentionShape& shape) {
  const int64_t group = shape.heads / shape.kv_heads;
  const auto q = qkv.narrow(1, 0, shape.query_width());
  const auto k = qkv.narrow(1, shape.query_width(), shape.kv_width());
  const auto v = qkv.narrow(1, shape.query_width() + shape.kv_width(), shape.kv_width());
  return {split_heads(q, shape, shape.heads), split_heads(k, shape, shape.kv_heads).repeat_interleave(group, 1),
          split_heads(v, shape, shape.kv_heads).repeat_interleave(group, 1)};
}

// (B, heads, T, head_dim) -> (rows, heads * head_dim)
at::Tensor join_heads(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(2).flatten(0, 1); }

// Sums the query heads' gradients of each shared key/value head.
at::Tensor sum_groups(const at::Tensor& per_query_head, const AttentionShape& shape) {
  return per_query_head.unflatten(1, {shape.kv_heads, shape.heads / shape.kv_heads}).sum(2);
}

double score_scale(const AttentionShape& shape) { return 1.0 / std::sqrt(static_cast<double>(shape.head_dim)); }

}  // namespace

Normed rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps) {
  const auto s = (x.square().mean(1) + eps).rsqrt();
  return {x * s.unsqueeze(1) * gain, s};
}

void rms_norm_backward(const at::Tensor& dh, const at::Tensor& x, const at::Tensor& s, const at::Tensor& gain,
                       at::Tensor& dx, at::Tensor& d_gain) {
  const auto weighted = dh * gain;
  const auto scale = s.unsqueeze(1);
  const auto dot = (weighted * x).mean(1, /*keepdim=*/true);
  dx.add_(weighted * scale - x * dot * scale.pow(3));
  d_gain.add_((dh * x * scale).sum(0));
}

void rope_(const at::Tensor& qk, const RopeTable& table, int64_t heads, int64_t head_dim, bool inverse) {
  const int64_t positions = table.cos.size(0);
  const auto view = qk.narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim}).unflatten(0, {-1, positions});
  const auto low = view.narrow(3, 0, head_dim / 2);
  const auto high = view.narrow(3, head_dim / 2, head_dim / 2);
  const auto cos = table.cos.unsqueeze(1);
  const auto sin = inverse ? -table.sin.unsqueeze(1) : table.sin.unsqueeze(1);
  const auto new_low = low * cos - high * sin;
  const auto new_high = high * cos + low * sin;
  low.copy_(new_low);
  high.copy_(new_high);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, 1);
  return at::silu(parts[0]) * parts[1];
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, 1);
  const auto sigmoid = parts[0].sigmoid();
  const auto silu = parts[0] * sigmoid;
  return at::cat({dy * parts[1] * (sigmoid + silu * (1 - sigmoid)), dy * silu}, 1);
}

Attended attention(const at::Tensor& qkv, const AttentionShape& shape) {
  const auto [q, k, v] = split(qkv, shape);
  const auto scores = at::matmul(q, k.transpose(2, 3)) * score_scale(shape);  // (B, heads, T, T)
  const auto future = at::ones({shape.length, shape.length}, scores.options().dtype(at::kBool)).triu(1);
  const auto masked = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  const auto lse = masked.logsumexp(3);
  return {join_heads(at::matmul((masked - lse.unsqueeze(3)).exp(), v)).contiguous(), lse};
}

at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape) {
  const auto [q, k, v] = split(qkv, shape);
  const double scale = score_scale(shape);
  const auto p = (at::matmul(q, k.transpose(2, 3)) * scale - forward.lse.unsqueeze(3)).exp().tril();
  const auto d_out = split_heads(d_output, shape, shape.heads);
  const auto out = split_heads(forward.output, shape, shape.heads);
  const auto delta = (d_out * out).sum(3, /*keepdim=*/true);
  const auto d_scores = p * (at::matmul(d_out, v.transpose(2, 3)) - delta) * scale;
  const auto dq = at::matmul(d_scores, k);
  const auto dk = sum_groups(at::matmul(d_scores.transpose(2, 3), q), shape);
  const auto dv = sum_groups(at::matmul(p.transpose(2, 3), d_out), shape);
  return at::cat({join_heads(dq), join_heads(dk), join_heads(dv)}, 1);
}

double cross_entropy_(at::Tensor& logits, const at::Tensor& targets, bool gradient, double scale) {
  const auto log_p = at::log_softmax(logits, 1);
  const auto index = targets.unsqueeze(1);
  const double total = -log_p.gather(1, index).to(at::kDouble).sum().item<double>();
  if (gradient) {
    logits.copy_(log_p.exp());
    logits.scatter_add_(1, index, at::full_like(index, -1, logits.options()));
    logits.mul_(scale);
  }
  return total;
}

void table_read_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& table,
                 const TokenIndex& tokens) {
  y.mul_(a.unsqueeze(1)).add_(table.index_select(0, tokens.inverse) * b.unsqueeze(1));
}

TableGradient table_read_backward(const at::Tensor& dy, const at::Tensor& b, const at::Tensor& table,
                                  const TokenIndex& tokens) {
  return {(dy * table.index_select(0, tokens.inverse)).sum(1),
          at::zeros_like(table).index_add_(0, tokens.inverse, dy * b.unsqueeze(1))};
}

void gain_product_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gain, at::Tensor& d_weight,
                           at::Tensor& d_gain) {
  d_weight.addcmul_(x, gain.unsqueeze(1).expand_as(x));
  d_gain.add_((x * weight).sum(1));
}

double squared_sum(const at::Tensor& x) { return x.to(at::kDouble).square().sum().item<double>(); }

at::Tensor nesterov_(at::Tensor& m, const at::Tensor& grad, double factor, double mu) {
  const auto g = grad * factor;
  m.lerp_(g, 1.0 - mu);
  return g.lerp(m, mu);
}

at::Tensor gram(const at::Tensor& x) { return x.mm(x.t()); }

at::Tensor inverse_of_positive(const at::Tensor& a) {
  const auto [factor, failed] = at::linalg_cholesky_ex(a);
  return at::where(failed == 0, at::cholesky_inverse(factor), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace aten_ops
}  // namespace thinpipe
