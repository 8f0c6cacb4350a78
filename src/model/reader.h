// How a block reads the residual stream: Y = norm(x) W, the input product of attention and of the MLP. A dense stream
// is x itself. A subspace stream is c; the direct form computes x = c U^T + e, the anchor table avoids it (METHOD 1b).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "model/anchors.h"
#include "model/kernels/ops.h"
#include "model/kv_cache.h"
#include "model/parameter.h"
#include "model/products.h"

namespace thinpipe {

// Shared by all blocks of a stage for one microbatch.
struct BlockContext {
  AttentionShape shape;
  std::optional<RopeTable> rope;  // of the tokens' positions; empty if the stream already contains positions
  Products products;
  // Generation only: the tokens of one sequence that follow those in the cache. Every block adds its keys and values.
  KvCache* cache = nullptr;
  // Subspace blocks only:
  const at::Tensor* u = nullptr;  // (d, k), in the run's type
  AnchorRows* anchors = nullptr;  // of the block's group
  InputForm form = InputForm::kAuto;

  int64_t first_position() const { return cache != nullptr ? cache->length() : 0; }
};

// What a read saves for its backward pass. Which fields are used depends on the form.
struct ReadPass {
  at::Tensor stream;               // x (BT, d) or c (BT, k)
  at::Tensor x;                    // (BT, d) direct: the input of the norm
  at::Tensor h;                    // (BT, d) dense and direct: the product's left operand
  at::Tensor scale;                // (BT) of the norm
  at::Tensor m;                    // (k, n) table: U^T diag(g) W
  std::vector<at::Tensor> tables;  // (u, n) each; table: (e o g) W of the rows of each part of the anchor
};

class StreamReader {
 public:
  virtual ~StreamReader() = default;
  virtual at::Tensor forward(const at::Tensor& stream, const BlockContext& context, ReadPass& pass) const = 0;
  // dy: (BT, n). Adds to the parameters' gradients and to `grad`, the gradient of the stream (with wide gradients: of
  // x, d wide).
  virtual void backward(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) = 0;
};

struct ReaderParameters {
  Parameter* gain;    // (d)
  Parameter* weight;  // (d, n)
};

std::unique_ptr<StreamReader> make_dense_reader(const ModelConfig& config, ReaderParameters parameters);
// wide_gradient: always reads directly and computes dL/dx instead of dL/dc (the tap, if the basis moves).
std::unique_ptr<StreamReader> make_subspace_reader(const ModelConfig& config, ReaderParameters parameters,
                                                   bool wide_gradient);

}  // namespace thinpipe
