// How well a model predicts text: the loss in nats per token, and figures derived from it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/stage.h"

namespace thinpipe {

struct Evaluation {
  double nats = 0;        // summed over the predicted tokens
  int64_t predicted = 0;  // number of predicted tokens

  double loss() const { return nats / static_cast<double>(predicted); }
  double perplexity() const;
  // text_bytes: the UTF-8 bytes of the predicted tokens.
  double bits_per_byte(double text_bytes) const;
};

// Takes tokens in portions and keeps at most a batch of them. Every token but the first is predicted once, from those
// before it in its window. The windows of `length` inputs are consecutive, as in training (docs/data.md), but the last
// one may be shorter. The stage must hold the whole model and outlive this object.
class Evaluator {
 public:
  Evaluator(const Stage& stage, int64_t length);

  void add(std::span<const int32_t> tokens);
  // Also predicts the last, shorter window.
  const Evaluation& finish();
  const Evaluation& so_far() const { return result_; }

 private:
  void run(int64_t sequences, int64_t length);

  const Stage& stage_;
  int64_t length_;
  int64_t sequences_;             // in a batch
  std::vector<int32_t> waiting_;  // the last predicted token and those after it
  Evaluation result_;
};

}  // namespace thinpipe
