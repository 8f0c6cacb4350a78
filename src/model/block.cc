#include "model/block.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace thinpipe {
namespace {

std::unique_ptr<StreamReader> add_reader(const ModelConfig& config, int64_t index, const char* norm, const char* weight,
                                         std::vector<int64_t> columns, bool subspace, bool wide_gradient,
                                         ParameterSet& parameters) {
  int64_t width = 0;
  for (const int64_t part : columns) width += part;
  ReaderParameters mine{};
  mine.gain = &parameters.add_ones(fmt::format("blocks.{}.{}_norm", index, norm), ParameterKind::kGain, {config.d});
  if (subspace && config.subspace.norm == NormForm::kSplit) {
    mine.anchor_gain =
        &parameters.add_ones(fmt::format("blocks.{}.{}_anchor_norm", index, norm), ParameterKind::kGain, {config.d});
  }
  mine.weight = &parameters.add_random(fmt::format("blocks.{}.{}", index, weight), ParameterKind::kMatrix,
                                       {config.d, width}, config.init_std, std::move(columns));
  return subspace ? make_subspace_reader(config, mine, wide_gradient) : make_dense_reader(config, mine);
}

Parameter& add_output(const ModelConfig& config, int64_t index, int number, int64_t inputs, bool subspace,
                      ParameterSet& parameters) {
  // The stream grows by 2L output projections; this keeps its variance at initialisation from growing with L.
  const double std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.blocks));
  if (!subspace) {
    return parameters.add_random(fmt::format("blocks.{}.wp{}", index, number), ParameterKind::kMatrix,
                                 {inputs, config.d}, std);
  }
  // A U^T has entries of this std when A's is larger by sqrt(d / k).
  const int64_t k = config.subspace.rank;
  const double scale =
      config.subspace.zero_init ? 0.0 : std::sqrt(static_cast<double>(config.d) / static_cast<double>(k));
  auto& a = parameters.add_random(fmt::format("blocks.{}.a{}", index, number), ParameterKind::kCoordinates, {inputs, k},
                                  std * scale);
  a.full_width = config.d;
  return a;
}

void rotate(const at::Tensor& qkv, const BlockContext& context, bool inverse) {
  if (!context.rope) return;
  // q and k stand side by side and turn alike.
  ops::rope_(qkv, *context.rope, context.shape.heads + context.shape.kv_heads, context.shape.head_dim, inverse);
}

}  // namespace

Block::Block(const ModelConfig& config, int64_t index, ParameterSet& parameters)
    : index_(index), norm_eps_(config.norm_eps) {
  const bool subspace = index < config.first_dense_block();
  const int64_t q = config.heads * config.head_dim(), kv = config.kv_heads * config.head_dim();
  // Without a dense tail the tap is the last block's input, where the tracker needs dL/dx itself (METHOD 3).
  wide_gradient_ = subspace && index == config.blocks - 1;
  attention_reader_ = add_reader(config, index, "attn", "wqkv", {q, kv, kv}, subspace, wide_gradient_, parameters);
  if (config.qk_norm) {
    q_gain_ = &parameters.add_ones(fmt::format("blocks.{}.q_norm", index), ParameterKind::kGain, {config.head_dim()});
    k_gain_ = &parameters.add_ones(fmt::format("blocks.{}.k_norm", index), ParameterKind::kGain, {config.head_dim()});
  }
  wp1_ = &add_output(config, index, 1, q, subspace, parameters);
  mlp_reader_ = add_reader(config, index, "mlp", "wgu", {config.mlp_width, config.mlp_width}, subspace, wide_gradient_,
                           parameters);
  wp2_ = &add_output(config, index, 2, config.mlp_width, subspace, parameters);
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

at::Tensor Block::forward(const at::Tensor& stream, const BlockContext& context, BlockPass* pass) const {
  BlockPass discarded;
  BlockPass& kept = pass != nullptr ? *pass : discarded;
  kept.qkv = attention_reader_->forward(stream, context, kept.attention_read);
  normalise_qk(kept.qkv, context.shape, kept);
  rotate(kept.qkv, context, /*inverse=*/false);
  kept.qkv = context.products.operand(kept.qkv);  // q, k and v are operands too; the probabilities stay as they are
  kept.attended = context.cache != nullptr ? Attended{context.cache->attend(index_, kept.qkv, context.shape), {}}
                                           : ops::attention(kept.qkv, context.shape);
  const auto middle = context.products.multiply_add(stream, kept.attended.output, wp1_->value);

  kept.gate_up = mlp_reader_->forward(middle, context, kept.mlp_read);
  kept.hidden = ops::swiglu(kept.gate_up);
  return context.products.multiply_add(middle, kept.hidden, wp2_->value);
}

at::Tensor Block::write_backward(const at::Tensor& grad, const at::Tensor& hidden, Parameter& weight,
                                 const BlockContext& context) {
  // Everything that writes coordinates needs the gradient only as G U (METHOD 1).
  const auto narrow = wide_gradient_ ? context.products.multiply(grad, *context.u) : grad;
  context.products.accumulate(weight.grad, hidden.t(), narrow);
  return context.products.multiply(narrow, weight.value.t());
}

at::Tensor Block::backward(at::Tensor grad, const BlockContext& context, const BlockPass& pass) {
  const auto d_hidden = write_backward(grad, pass.hidden, *wp2_, context);
  mlp_reader_->backward(ops::swiglu_backward(d_hidden, pass.gate_up), context, pass.mlp_read, grad);

  const auto d_attended = write_backward(grad, pass.attended.output, *wp1_, context);
  auto d_qkv = ops::attention_backward(d_attended, pass.qkv, pass.attended, context.shape);
  rotate(d_qkv, context, /*inverse=*/true);
  normalise_qk_backward(d_qkv, context.shape, pass);
  attention_reader_->backward(d_qkv, context, pass.attention_read, grad);
  return grad;
}

}  // namespace thinpipe
