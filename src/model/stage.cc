#include "model/stage.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <malloc.h>

#include <memory>
#include <utility>

#include "base/result.h"
#include "base/rng.h"
#include "model/fill.h"
#include "model/fixed_table.h"
#include "model/grassmann.h"

namespace thinpipe {

at::Tensor first_value(const ParameterSpec& spec, uint64_t seed, const FixedTable* fixed,
                       const at::TensorOptions& options) {
  switch (spec.first) {
    case FirstValues::kNormal:
      return fill_random(CounterRng(seed, spec.name), spec.shape, spec.std, options);
    case FirstValues::kZeros:
      return at::zeros(spec.shape, options);
    case FirstValues::kOnes:
      return at::ones(spec.shape, options);
    case FirstValues::kFixedTable:
      return fixed->whole().clone();
  }
  TP_CHECK(false, "no first values for {}", spec.name);
}

namespace {

std::shared_ptr<const FixedTable> make_fixed_table(const ModelConfig& config, int64_t vocab, uint64_t seed,
                                                   const at::Tensor& given, const at::TensorOptions& options) {
  if (given.defined()) return std::make_shared<const FixedTable>(given, options);
  if (!config.is_subspace()) return nullptr;
  return std::make_shared<const FixedTable>(seed, vocab, config.d, config.subspace.anchor_std, options);
}

// Every pass needs the same tensors again. By default the C library gives large ones back to the kernel, and clearing
// the pages of new ones then takes a tenth of a step.
void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace

Stage::Stage(const ModelConfig& config, int64_t vocab, BlockRange range, Precision precision, uint64_t seed,
             const at::Device& device, const at::Tensor& table, bool trained)
    : config_(config),
      range_(range),
      products_(precision),
      options_(at::TensorOptions().dtype(storage_type(precision)).device(device)) {
  TP_CHECK(0 <= range.first && range.first < range.last && range.last <= range.total, "empty stage [{}, {}) of {}",
           range.first, range.last, range.total);
  keep_freed_memory();
  TP_CHECK(!table.defined() || (!config.table.empty() && table.size(0) == vocab && table.size(1) == config.d),
           "a token table, but the config does not name one");
  if (!table.defined() && !config.table.empty() && (config.is_subspace() || range.has_embedding())) {
    throw UserError(fmt::format("model.table = \"{}\": the table is missing", config.table));
  }
  const auto fixed = make_fixed_table(config, vocab, seed, table, options_);
  for (const auto& spec : model_spec(config, vocab, range)) {
    parameters_.add(spec, first_value(spec, seed, fixed.get(), options_), trained);
  }
  if (range.has_embedding()) embedding_ = &parameters_.all().front();
  if (config.is_subspace()) subspace_.emplace(config, range, seed, fixed, options_, parameters_);
  blocks_.reserve(static_cast<size_t>(range.size()));
  for (int64_t index = range.first; index < range.last; ++index) {
    blocks_.emplace_back(config, index, parameters_, group_of_one());
  }
  if (range.has_head()) head_.emplace(config, parameters_);
}

BlockContext Stage::context_for(int64_t sequences, int64_t length, KvCache* cache) const {
  BlockContext context{{sequences, length, config_.heads, config_.kv_heads, config_.head_dim()}, {}, products_, cache};
  if (cache != nullptr) {
    context.rope = cache->rope(length);
  } else if (config_.positions == Positions::kRope) {
    if (!rope_ || rope_->cos.size(0) != length) {
      rope_ = make_rope_table(length, config_.head_dim(), config_.rope_base, options());
    }
    context.rope = rope_;
  }
  if (subspace_) {
    context.u = &subspace_->u();
    context.form = config_.subspace.input;
  }
  return context;
}

BlockContext Stage::context_at(const BlockContext& context, int64_t index, std::vector<AnchorRows>& anchors) const {
  auto own = context;
  if (subspace_) own.anchors = &anchors[subspace_->group_of(index)];
  return own;
}

at::Tensor Stage::embed(const at::Tensor& ids, const BlockContext& context) const {
  auto stream = embedding_->value.index_select(0, ids);
  // In coordinates, the anchor contains the position's sinusoids.
  if (config_.positions == Positions::kSinusoidal && !subspace_) {
    const int64_t length = context.shape.length;
    stream.view({-1, length, config_.d}).add_(sinusoids(config_, context.first_position(), length, options()));
  }
  return stream;
}

at::Tensor Stage::run(const at::Tensor& ids, const at::Tensor& input, const BlockContext& context, StagePass& pass,
                      bool keep) const {
  TP_CHECK(input.defined() != range_.has_embedding(), "only the first stage has no input");
  auto stream = range_.has_embedding() ? embed(ids, context) : input;
  if (subspace_) {
    const auto before = context.cache != nullptr ? context.cache->last_id() : at::Tensor();
    pass.anchors =
        subspace_->anchor_rows(index_anchors(config_, ids, context.shape.length, context.first_position(), before));
  }
  if (keep) pass.blocks.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int64_t index = range_.first + static_cast<int64_t>(i);
    const auto own = context_at(context, index, pass.anchors);
    const bool kept = keep && !recomputes_;
    if (keep && recomputes_) pass.blocks[i].attention_read.stream = stream;  // enough to begin again
    stream = blocks_[i].forward(stream, own, kept ? &pass.blocks[i] : nullptr);
  }
  if (head_ && head_lifts()) stream = subspace_->lift(stream, pass.anchors.back());
  return stream;
}

StagePass Stage::forward(TokenBatch batch, const at::Tensor& input, double loss_scale) {
  StagePass pass;
  pass.batch = std::move(batch);
  const auto context = context_for(pass.batch.sequences(), pass.batch.length());
  auto stream = run(pass.batch.inputs(), input, context, pass, /*keep=*/true);
  if (head_) {
    pass.loss_sum = head_->loss_and_gradient(stream, pass.batch.targets(), products_, loss_scale, pass.head_grad);
  } else {
    pass.output = std::move(stream);
  }
  return pass;
}

StagePass Stage::evaluate(TokenBatch batch, const at::Tensor& input) const {
  StagePass pass;
  pass.batch = std::move(batch);
  const auto context = context_for(pass.batch.sequences(), pass.batch.length());
  auto stream = run(pass.batch.inputs(), input, context, pass, /*keep=*/false);
  if (head_) {
    pass.loss_sum = head_->loss(stream, pass.batch.targets(), products_);
  } else {
    pass.output = std::move(stream);
  }
  pass.anchors.clear();
  return pass;
}

at::Tensor Stage::extend(const at::Tensor& ids, KvCache& cache) const {
  TP_CHECK(range_.has_embedding() && range_.has_head(), "only a stage with the whole model can generate");
  const int64_t rows = ids.size(0);
  TP_CHECK(rows > 0 && rows <= cache.capacity() - cache.length(), "{} tokens for a cache with room for {}", rows,
           cache.capacity() - cache.length());
  StagePass pass;
  auto x = run(ids, {}, context_for(1, rows, &cache), pass, /*keep=*/false);
  cache.grow(ids);
  return x;
}

at::Tensor Stage::logits(const at::Tensor& x) const {
  TP_CHECK(head_, "only the last stage has a head");
  return head_->logits(x, products_);
}

at::Tensor Stage::backward(StagePass pass, at::Tensor grad) {
  const auto context = context_for(pass.batch.sequences(), pass.batch.length());
  if (head_) {
    grad = std::move(pass.head_grad);
    if (head_lifts()) {
      subspace_->lift_backward_to_anchors(grad, pass.anchors.back());
      if (!blocks_.back().wide_gradient()) grad = subspace_->lower(grad);
    }
  }
  for (size_t i = blocks_.size(); i-- > 0;) {
    const int64_t index = range_.first + static_cast<int64_t>(i);
    const auto own = context_at(context, index, pass.anchors);
    if (recomputes_) blocks_[i].forward(at::Tensor(pass.blocks[i].attention_read.stream), own, &pass.blocks[i]);
    grad = blocks_[i].backward(std::move(grad), own, pass.blocks[i]);
    pass.blocks[i] = {};  // not needed after the block's backward pass
    if (blocks_[i].wide_gradient()) {
      subspace_->tap(grad);
      grad = subspace_->lower(grad);
    }
  }
  if (subspace_) subspace_->anchors_backward(pass.anchors);
  if (embedding_ == nullptr) return grad;
  embedding_->grad.index_add_(0, pass.batch.inputs(), grad);
  return {};
}

at::Tensor Stage::change_over(Basis next) {
  TP_CHECK(subspace_, "a dense model has no basis to change");
  const auto q = change_of_coordinates(subspace_->basis(), next);
  auto q_here = q.to(options().device(), options().dtype().toScalarType());
  for (auto& parameter : parameters_.all()) {
    if (parameter.is_coordinates()) parameter.value.copy_(parameter.value.mm(q_here));
  }
  subspace_->set_basis(std::move(next));
  subspace_->set_second_moment({});
  return q_here;
}

}  // namespace thinpipe
