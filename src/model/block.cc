#include "model/block.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>

namespace thinpipe {
namespace {

std::unique_ptr<StreamReader> make_reader(const ModelConfig& config, int64_t index, const char* norm,
                                          const char* weight, bool subspace, bool wide_gradient,
                                          ParameterSet& parameters) {
  const auto named = [&](const std::string& part) { return fmt::format("blocks.{}.{}", index, part); };
  const ReaderParameters mine{&parameters.at(named(fmt::format("{}_norm", norm))), &parameters.at(named(weight))};
  return subspace ? make_subspace_reader(config, mine, wide_gradient) : make_dense_reader(config, mine);
}

void rotate(const at::Tensor& qkv, const BlockContext& context, bool inverse) {
  if (!context.rope) return;
  // q and k are adjacent and rotate in the same way.
  ops::rope_(qkv, *context.rope, context.shape.heads + context.shape.kv_heads, context.shape.head_dim, inverse);
}

}  // namespace

Block::Block(const ModelConfig& config, int64_t index, ParameterSet& parameters, TensorGroup& group)
    : index_(index), norm_eps_(config.norm_eps), group_(&group) {
  const bool subspace = index < config.first_dense_block();
  const auto named = [&](const char* part) { return fmt::format("blocks.{}.{}", index, part); };
  lifts_ = config.is_subspace() && index == config.first_dense_block();
  const bool tapped = lifts_ || (subspace && index == config.blocks - 1);
  wide_gradient_ = tapped && config.subspace.update_every > 0;
  attention_reader_ = make_reader(config, index, "attn", "wqkv", subspace || lifts_, wide_gradient_, parameters);
  q_gain_ = parameters.find(named("q_norm"));
  k_gain_ = parameters.find(named("k_norm"));
  wp1_ = &parameters.at(named(subspace ? "a1" : "wp1"));
  mlp_reader_ = make_reader(config, index, "mlp", "wgu", subspace, wide_gradient_, parameters);
  wp2_ = &parameters.at(named(subspace ? "a2" : "wp2"));
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
    ops::rms_norm_backward(columns.reshape({-1, shape.head_dim}).contiguous(), kept.raw, kept.s, gain.value, d_raw,
                           gain.grad);
    columns.copy_(d_raw.view_as(columns));
  };
  denormalise(d_qkv.narrow(1, 0, shape.query_width()), *q_gain_, pass.q_norm);
  denormalise(d_qkv.narrow(1, shape.query_width(), shape.kv_width()), *k_gain_, pass.k_norm);
}

at::Tensor Block::residual(const at::Tensor& stream, const BlockContext& context) const {
  return group_->own_start(lifts_ ? at::addmm(context.anchors->per_row(), stream, context.u->t()) : stream);
}

at::Tensor Block::forward(const at::Tensor& stream, const BlockContext& context, BlockPass* pass) const {
  BlockPass discarded;
  BlockPass& kept = pass != nullptr ? *pass : discarded;
  kept.qkv = attention_reader_->forward(stream, context, kept.attention_read);
  normalise_qk(kept.qkv, context.shape, kept);
  rotate(kept.qkv, context, /*inverse=*/false);
  kept.qkv = context.products.operand(kept.qkv);  // q, k and v are operands too; the probabilities are not rounded
  kept.attended = context.cache != nullptr ? Attended{context.cache->attend(index_, kept.qkv, context.shape), {}}
                                           : ops::attention(kept.qkv, context.shape);
  auto middle = context.products.multiply_add(residual(stream, context), kept.attended.output, wp1_->value);
  group_->all_reduce_(middle);

  kept.gate_up = mlp_reader_->forward(middle, context, kept.mlp_read);
  kept.hidden = ops::swiglu(kept.gate_up);
  auto output = context.products.multiply_add(group_->own_start(middle), kept.hidden, wp2_->value);
  group_->all_reduce_(output);
  return output;
}

at::Tensor Block::write_backward(const at::Tensor& grad, const at::Tensor& hidden, Parameter& weight,
                                 const BlockContext& context) {
  // Everything that writes coordinates needs the gradient only in the form G U (METHOD 1).
  const auto narrow = wide_gradient_ && !lifts_ ? context.products.multiply(grad, *context.u) : grad;
  context.products.accumulate(weight.grad, hidden.t(), narrow);
  return context.products.multiply(narrow, weight.value.t());
}

at::Tensor Block::backward(at::Tensor grad, const BlockContext& context, const BlockPass& pass) {
  const auto d_hidden = write_backward(grad, pass.hidden, *wp2_, context);
  grad = group_->own_start(grad);
  mlp_reader_->backward(ops::swiglu_backward(d_hidden, pass.gate_up), context, pass.mlp_read, grad);
  group_->all_reduce_(grad);

  const auto d_attended = write_backward(grad, pass.attended.output, *wp1_, context);
  if (lifts_) {  // from here on backward of x = c U^T + e
    if (context.anchors->trainable()) context.anchors->add_gradient(grad);
    if (!wide_gradient_) grad = grad.mm(*context.u);
  }
  grad = group_->own_start(grad);
  auto d_qkv = ops::attention_backward(d_attended, pass.qkv, pass.attended, context.shape);
  rotate(d_qkv, context, /*inverse=*/true);
  normalise_qk_backward(d_qkv, context.shape, pass);
  attention_reader_->backward(d_qkv, context, pass.attention_read, grad);
  group_->all_reduce_(grad);
  return grad;
}

}  // namespace thinpipe
