#include "models/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/result.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

constexpr int64_t kTokensAtOnce = 2048;  // per batch: enough for efficient products, with little memory

}  // namespace

double Evaluation::perplexity() const { return std::exp(loss()); }

double Evaluation::bits_per_byte(double text_bytes) const { return nats / std::numbers::ln2 / text_bytes; }

Evaluator::Evaluator(const Stage& stage, int64_t length)
    : stage_(stage), length_(length), sequences_(std::max<int64_t>(1, kTokensAtOnce / length)) {
  TP_CHECK(length > 0, "windows of {} tokens", length);
}

void Evaluator::run(int64_t sequences, int64_t length) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto first = waiting_.begin() + i * length;
    ids.insert(ids.end(), first, first + length + 1);
  }
  const TokenBatch batch{ids_tensor(ids, stage_.options()).view({sequences, length + 1})};
  result_.nats += stage_.evaluate(batch, {}).loss_sum;
  result_.predicted += sequences * length;
  waiting_.erase(waiting_.begin(), waiting_.begin() + sequences * length);  // the last target is the next input
}

void Evaluator::add(std::span<const int32_t> tokens) {
  const auto full = static_cast<size_t>(sequences_ * length_) + 1;
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(tokens.size(), full - waiting_.size()));
    waiting_.insert(waiting_.end(), part.begin(), part.end());
    tokens = tokens.subspan(part.size());
    if (waiting_.size() == full) run(sequences_, length_);
  }
}

const Evaluation& Evaluator::finish() {
  const auto left = static_cast<int64_t>(waiting_.size()) - 1;
  if (left >= length_) run(left / length_, length_);
  if (const int64_t rest = static_cast<int64_t>(waiting_.size()) - 1; rest > 0) run(1, rest);
  return result_;
}

}  // namespace thinpipe
