#include "model/block.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace thinpipe {
namespace {

std::string name_of(int64_t index, const char* part) { return fmt::format("blocks.{}.{}", index, part); }

// The stream grows by 2L output projections; this keeps its variance at initialisation from growing with L.
double output_std(const ModelConfig& config) {
  return config.init_std / std::sqrt(2.0 * static_cast<double>(config.blocks));
}

void rotate(const at::Tensor& qkv, const BlockContext& context, bool inverse) {
  if (context.rope == nullptr) return;
  // q and k stand side by side and turn alike.
  ops::rope_(qkv, *context.rope, context.shape.heads + context.shape.kv_heads, context.shape.head_dim, inverse);
}

}  // namespace

Block::Block(const ModelConfig& config, int64_t index, ParameterSet& parameters)
    : norm_eps_(config.norm_eps),
      attention_gain_(parameters.add_ones(name_of(index, "attn_norm"), ParameterKind::kGain, {config.d})),
      wqkv_(parameters.add_random(
          name_of(index, "wqkv"), ParameterKind::kMatrix,
          {config.d, (config.heads + 2 * config.kv_heads) * config.head_dim()}, config.init_std,
          {config.heads * config.head_dim(), config.kv_heads * config.head_dim(), config.kv_heads * config.head_dim()})),
      q_gain_(config.qk_norm
                  ? &parameters.add_ones(name_of(index, "q_norm"), ParameterKind::kGain, {config.head_dim()})
                  : nullptr),
      k_gain_(config.qk_norm
                  ? &parameters.add_ones(name_of(index, "k_norm"), ParameterKind::kGain, {config.head_dim()})
                  : nullptr),
      wp1_(parameters.add_random(name_of(index, "wp1"), ParameterKind::kMatrix,
                                 {config.heads * config.head_dim(), config.d}, output_std(config))),
      mlp_gain_(parameters.add_ones(name_of(index, "mlp_norm"), ParameterKind::kGain, {config.d})),
      wgu_(parameters.add_random(name_of(index, "wgu"), ParameterKind::kMatrix, {config.d, 2 * config.mlp_width},
                                 config.init_std, {config.mlp_width, config.mlp_width})),
      wp2_(parameters.add_random(name_of(index, "wp2"), ParameterKind::kMatrix, {config.mlp_width, config.d},
                                 output_std(config))) {}

at::Tensor Block::read(const at::Tensor& x, const Parameter& gain, const Parameter& weight, const BlockContext& context,
                       InputPass& pass) const {
  auto normed = ops::rms_norm(x, gain.value, norm_eps_);
  pass = {x, std::move(normed.h), std::move(normed.s)};
  return context.products.multiply(pass.h, weight.value);
}

void Block::read_backward(const at::Tensor& dy, Parameter& gain, Parameter& weight, const BlockContext& context,
                          const InputPass& pass, at::Tensor& grad) {
  context.products.accumulate(weight.grad, pass.h.t(), dy);
  const auto dh = context.products.multiply(dy, weight.value.t());
  ops::rms_norm_backward(dh, pass.x, pass.s, gain.value, grad, gain.grad);
}

void Block::normalise_qk(at::Tensor& qkv, const AttentionShape& shape, BlockPass& pass) const {
  if (q_gain_ == nullptr) return;
  const auto normalise = [&](const at::Tensor& columns, const Parameter& gain, QkNormPass& kept) {
    kept.raw = columns.reshape({-1, shape.head_dim}).clone();
    auto normed = ops::rms_norm(kept.raw, gain.value, norm_eps_);
    kept.s = std::move(normed.s);
    columns.copy_(normed.h.view_as(columns));
  };
  normalise(qkv.narrow(1, 0, shape.query_width()), *q_gain_, pass.q_norm);
  normalise(qkv.narrow(1, shape.query_width(), shape.kv_width()), *k_gain_, pass.k_norm);
}

void Block::normalise_qk_backward(at::Tensor& d_qkv, const AttentionShape& shape, const BlockPass& pass) {
  if (q_gain_ == nullptr) return;
  const auto denormalise = [&](const at::Tensor& columns, Parameter& gain, const QkNormPass& kept) {
    auto d_raw = at::zeros_like(kept.raw);
    ops::rms_norm_backward(columns.reshape({-1, shape.head_dim}).contiguous(), kept.raw, kept.s, gain.value, d_raw, gain.grad);
    columns.copy_(d_raw.view_as(columns));
  };
  denormalise(d_qkv.narrow(1, 0, shape.query_width()), *q_gain_, pass.q_norm);
  denormalise(d_qkv.narrow(1, shape.query_width(), shape.kv_width()), *k_gain_, pass.k_norm);
}

at::Tensor Block::forward(const at::Tensor& x, const BlockContext& context, BlockPass* pass) const {
  BlockPass discarded;
  BlockPass& kept = pass != nullptr ? *pass : discarded;
  kept.qkv = read(x, attention_gain_, wqkv_, context, kept.attention_input);
  normalise_qk(kept.qkv, context.shape, kept);
  rotate(kept.qkv, context, /*inverse=*/false);
  kept.attended = ops::attention(kept.qkv, context.shape);
  const auto middle = context.products.multiply_add(x, kept.attended.output, wp1_.value);
  kept.gate_up = read(middle, mlp_gain_, wgu_, context, kept.mlp_input);
  kept.hidden = ops::swiglu(kept.gate_up);
  return context.products.multiply_add(middle, kept.hidden, wp2_.value);
}

at::Tensor Block::backward(at::Tensor grad, const BlockContext& context, const BlockPass& pass) {
  const auto& products = context.products;
  products.accumulate(wp2_.grad, pass.hidden.t(), grad);
  const auto d_hidden = products.multiply(grad, wp2_.value.t());
  read_backward(ops::swiglu_backward(d_hidden, pass.gate_up), mlp_gain_, wgu_, context, pass.mlp_input, grad);

  products.accumulate(wp1_.grad, pass.attended.output.t(), grad);
  const auto d_attended = products.multiply(grad, wp1_.value.t());
  auto d_qkv = ops::attention_backward(d_attended, pass.qkv, pass.attended, context.shape);
  rotate(d_qkv, context, /*inverse=*/true);
  normalise_qk_backward(d_qkv, context.shape, pass);
  read_backward(d_qkv, attention_gain_, wqkv_, context, pass.attention_input, grad);
  return grad;
}

}  // namespace thinpipe
