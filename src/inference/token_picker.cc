#include "inference/token_picker.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/result.h"

namespace thinpipe {

TokenPicker::TokenPicker(const PickOptions& options) : options_(options), draws_(options.seed, "generate") {
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    throw UserError(fmt::format("--temperature {}: needs a number from 0 to 100", options.temperature));
  }
  if (options.top_k < 0) throw UserError(fmt::format("--top-k {}: needs 0 (all) or more", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw UserError(fmt::format("--top-p {}: needs a number above 0, at most 1", options.top_p));
  }
}

Result<int32_t> TokenPicker::pick(std::span<const float> logits) {
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == INFINITY)
      return Error{"the model's logits are not finite: its weights are damaged"};
  }
  const uint64_t number = picked_++;
  if (options_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  const size_t kept =
      options_.top_k == 0 ? logits.size() : std::min(logits.size(), static_cast<size_t>(options_.top_k));
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(), likelier);

  const double best = logits[static_cast<size_t>(order_[0])];
  shares_.resize(kept);
  for (size_t i = 0; i < kept; ++i) {
    shares_[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(order_[i])]) - best) / options_.temperature);
  }
  const double all = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  size_t nucleus = 0;
  double inside = 0;
  while (nucleus < kept && (nucleus == 0 || inside < options_.top_p * all)) inside += shares_[nucleus++];

  double left = draws_.uniform(number) * inside;
  for (size_t i = 0; i < nucleus; ++i) {
    left -= shares_[i];
    if (left < 0) return order_[i];
  }
  return order_[nucleus - 1];  // rounding
}

}  // namespace thinpipe
