// Which token comes next: a draw from the model's logits, shaped by temperature, top-k and top-p, or the best one. The
// same logits and seed give the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/rng.h"

namespace thinpipe {

struct PickOptions {
  double temperature = 0.8;  // logits are divided by it; 0: always the likeliest token
  int64_t top_k = 40;        // only the so many likeliest; 0: all
  double top_p = 0.95;       // of those, the fewest that hold this share of the probability
  uint64_t seed = 1;
};

class TokenPicker {
 public:
  // Throws UserError naming the option that is out of its range.
  explicit TokenPicker(const PickOptions& options);

  // Temperature first, then top-k, then top-p, then a draw. Equal logits stand in the order of their ids. An error if a
  // logit is not a number.
  Result<int32_t> pick(std::span<const float> logits);

 private:
  PickOptions options_;
  CounterRng draws_;
  uint64_t picked_ = 0;
  std::vector<int32_t> order_;  // scratch: ids, likeliest first
  std::vector<double> shares_;
};

}  // namespace thinpipe
