// How well a model predicts text: the loss in nats per token, and what follows from it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/stage.h"

namespace thinpipe {

struct Evaluation {
  double nats = 0;        // summed over the predicted tokens
  int64_t predicted = 0;  // tokens

  double loss() const { return nats / static_cast<double>(predicted); }
  double perplexity() const;
  // text_bytes: UTF-8 bytes that the predicted tokens stand for.
  double bits_per_byte(double text_bytes) const;
};

// Takes tokens as they come and keeps no more than a batch of them. Every token but the first is predicted once, from
// those before it in its window: windows of `length` inputs one after the other, as in training (docs/data.md), only
// that the last one may be shorter. The stage must hold the whole model and outlive this.
class Evaluator {
 public:
  Evaluator(const Stage& stage, int64_t length);

  void add(std::span<const int32_t> tokens);
  // Predicts the last, shorter window too.
  const Evaluation& finish();
  const Evaluation& so_far() const { return result_; }

 private:
  void run(int64_t sequences, int64_t length);

  const Stage& stage_;
  int64_t length_;
  int64_t sequences_;             // in a batch
  std::vector<int32_t> waiting_;  // not yet predicted, behind the last token that was
  Evaluation result_;
};

}  // namespace thinpipe
