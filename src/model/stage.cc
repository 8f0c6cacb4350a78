#include "model/stage.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/check.h"

namespace thinpipe {
namespace {

// (T, d): sin and cos of the position at d/2 frequencies, halves side by side.
at::Tensor sinusoids(int64_t positions, int64_t d, const at::TensorOptions& options) {
  const auto table = make_rope_table(positions, d, 10000.0, options);
  return at::cat({table.sin, table.cos}, 1);
}

}  // namespace

Stage::Stage(const ModelConfig& config, int64_t vocab, BlockRange range, Precision precision, uint64_t seed,
             const at::Device& device)
    : config_(config),
      range_(range),
      products_(precision),
      parameters_(seed, at::TensorOptions().dtype(storage_type(precision)).device(device)) {
  TP_CHECK(0 <= range.first && range.first < range.last && range.last <= range.total, "empty stage [{}, {}) of {}",
           range.first, range.last, range.total);
  if (range.has_embedding()) {
    embedding_ = &parameters_.add_random("embedding", ParameterKind::kEmbedding, {vocab, config.d}, config.init_std);
  }
  blocks_.reserve(static_cast<size_t>(range.last - range.first));
  for (int64_t index = range.first; index < range.last; ++index) blocks_.emplace_back(config, index, parameters_);
  if (range.has_head()) head_.emplace(config, vocab, parameters_);
}

BlockContext Stage::context_for(const TokenBatch& batch) const {
  const bool rotary = config_.positions == Positions::kRope;
  if (rotary && (!rope_ || rope_->cos.size(0) != batch.length())) {
    rope_ = make_rope_table(batch.length(), config_.head_dim(), config_.rope_base, options());
  }
  return {{batch.sequences(), batch.length(), config_.heads, config_.kv_heads, config_.head_dim()},
          rotary ? &*rope_ : nullptr,
          products_};
}

at::Tensor Stage::embed(const TokenBatch& batch) const {
  auto x = embedding_->value.index_select(0, batch.inputs());  // (BT, d)
  if (config_.positions == Positions::kSinusoidal) {
    x.view({batch.sequences(), batch.length(), config_.d}).add_(sinusoids(batch.length(), config_.d, options()));
  }
  return x;
}

StagePass Stage::forward(TokenBatch batch, const at::Tensor& input, double loss_scale) {
  TP_CHECK(input.defined() != range_.has_embedding(), "only the first stage has no input");
  const auto context = context_for(batch);
  StagePass pass;
  pass.blocks.resize(blocks_.size());
  auto x = range_.has_embedding() ? embed(batch) : input;
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i].forward(x, context, &pass.blocks[i]);
  if (head_) {
    pass.loss_sum = head_->loss_and_gradient(x, batch.targets(), products_, loss_scale, pass.head_grad);
  } else {
    pass.output = std::move(x);
  }
  pass.batch = std::move(batch);
  return pass;
}

StagePass Stage::evaluate(TokenBatch batch, const at::Tensor& input) const {
  const auto context = context_for(batch);
  auto x = range_.has_embedding() ? embed(batch) : input;
  for (const auto& block : blocks_) x = block.forward(x, context, nullptr);
  StagePass pass;
  if (head_) {
    pass.loss_sum = head_->loss(x, batch.targets(), products_);
  } else {
    pass.output = std::move(x);
  }
  pass.batch = std::move(batch);
  return pass;
}

at::Tensor Stage::backward(StagePass pass, at::Tensor grad) {
  const auto context = context_for(pass.batch);
  if (head_) grad = std::move(pass.head_grad);
  for (size_t i = blocks_.size(); i-- > 0;) {
    grad = blocks_[i].backward(std::move(grad), context, pass.blocks[i]);
    pass.blocks[i] = {};  // a block's activations are not needed once its gradient has passed
  }
  if (embedding_ == nullptr) return grad;
  embedding_->grad.index_add_(0, pass.batch.inputs(), grad);
  return {};
}

}  // namespace thinpipe
