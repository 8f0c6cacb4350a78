// A stage: a contiguous range of the model's blocks, with the embedding if it is the first stage and the head and loss
// if it is the last. It does not know about links or schedules: tokens and a stream go in, a stream or a loss comes
// out, and gradients go the way back. The stream is x (BT, d) in a dense model and c (BT, k) in a subspace model; its
// gradient has the same width.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "model/block.h"
#include "model/head.h"
#include "model/kv_cache.h"
#include "model/parameter.h"
#include "model/subspace_side.h"

namespace thinpipe {

// The tokens of a microbatch: inputs are columns 0..T-1, targets columns 1..T.
struct TokenBatch {
  at::Tensor tokens;  // (B, T+1) int64, every id in [0, V)

  int64_t sequences() const { return tokens.size(0); }
  int64_t length() const { return tokens.size(1) - 1; }
  // (BT); contiguous even if T = 1, where reshape() would return a strided view
  at::Tensor inputs() const { return tokens.narrow(1, 0, length()).reshape({-1}).contiguous(); }
  at::Tensor targets() const { return tokens.narrow(1, 1, length()).reshape({-1}).contiguous(); }
};

// One microbatch in a stage.
struct StagePass {
  TokenBatch batch;
  at::Tensor output;    // the input of the next stage; undefined at the last stage
  double loss_sum = 0;  // last stage: sum over the microbatch's tokens
  std::vector<AnchorRows> anchors;
  std::vector<BlockPass> blocks;
  at::Tensor head_grad;  // last stage: dL/d(x that the head read)
};

// The initial value of a parameter depends on (seed, name) alone, so all cuts of a model start from the same weights.
// fixed: T_fixed, for FirstValues::kFixedTable only.
at::Tensor first_value(const ParameterSpec& spec, uint64_t seed, const FixedTable* fixed,
                       const at::TensorOptions& options);

class Stage {
 public:
  // `table`: T_fixed, (V, d) float32 as read by pipeline/table_file.h, if and only if model.table names one. Throws
  // UserError if it is missing. A stage that is not trained has no memory for gradients and only evaluates and extends.
  Stage(const ModelConfig& config, int64_t vocab, BlockRange range, Precision precision, uint64_t seed,
        const at::Device& device, const at::Tensor& table = {}, bool trained = true);

  // From now on a pass keeps only the input of each block, and backward() computes the rest again.
  void recompute_blocks(bool on) { recomputes_ = on; }

  // `input`: the stream, undefined at the first stage. The last stage's gradients are those of loss_scale * loss_sum.
  StagePass forward(TokenBatch batch, const at::Tensor& input, double loss_scale);
  // The forward pass without saving anything: returns the output, or at the last stage the loss sum.
  StagePass evaluate(TokenBatch batch, const at::Tensor& input) const;
  // `grad`: dL/d(output), undefined at the last stage. Adds to the parameters' gradients; returns dL/d(input),
  // undefined at the first stage. Consumes both.
  at::Tensor backward(StagePass pass, at::Tensor grad);

  // For generation, by a stage that holds the whole model: reads the tokens that follow those in the cache, which must
  // have room for them, and returns x after the last block for each.     ids: (n) int64 -> (n, d)
  at::Tensor extend(const at::Tensor& ids, KvCache& cache) const;
  // The head's logits for such rows: (n, V).
  at::Tensor logits(const at::Tensor& x) const;

  ParameterSet& parameters() { return parameters_; }
  const BlockRange& range() const { return range_; }
  const at::TensorOptions& options() const { return options_; }

  // Null for a dense model.
  SubspaceSide* subspace() { return subspace_ ? &*subspace_ : nullptr; }
  const SubspaceSide* subspace() const { return subspace_ ? &*subspace_ : nullptr; }
  // Moves to another basis: A <- A Q, E <- E Q with Q = U^T U', which is returned for the moments.
  at::Tensor change_over(Basis next);

 private:
  // For sequences of `length` tokens, starting at position 0 or at the end of `cache`.
  BlockContext context_for(int64_t sequences, int64_t length, KvCache* cache = nullptr) const;
  // The context as one block sees it, with the anchors of its group.
  BlockContext context_at(const BlockContext& context, int64_t index, std::vector<AnchorRows>& anchors) const;
  // Embeds the ids (BT) at the first stage and runs the blocks; the last stage's stream is x in the end. Fills
  // `pass.blocks` if `keep`.
  at::Tensor run(const at::Tensor& ids, const at::Tensor& input, const BlockContext& context, StagePass& pass,
                 bool keep) const;
  at::Tensor embed(const at::Tensor& ids, const BlockContext& context) const;
  // A model without a dense tail is lifted before the head; in others the tail's first block does it.
  bool head_lifts() const { return subspace_ && config_.first_dense_block() == range_.total; }

  ModelConfig config_;
  BlockRange range_;
  Products products_;
  at::TensorOptions options_;
  ParameterSet parameters_;
  Parameter* embedding_ = nullptr;  // (V, d), or E (V, k); first stage
  std::vector<Block> blocks_;
  std::optional<SubspaceSide> subspace_;
  std::optional<Head> head_;
  bool recomputes_ = false;
  mutable std::optional<RopeTable> rope_;  // for the most recent length; a stage has one compute thread
};

}  // namespace thinpipe
