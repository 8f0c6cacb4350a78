#include "optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "model/kernels/ops.h"
#include "model/threads.h"
#include "optim/learning_rate.h"

namespace thinpipe {

double clip_factor(double squared_norm, double clip) {
  const double norm = std::sqrt(squared_norm);
  return clip > 0 && norm > clip ? clip / norm : 1.0;
}

Optimizer::Optimizer(const OptimConfig& config, int64_t total_steps, ParameterSet& parameters, uint64_t seed)
    : config_(config), total_steps_(total_steps) {
  for (auto& parameter : parameters.all()) {
    const auto& kind = rule_for(config.kind, parameter);
    entries_.push_back({&parameter, kind.make(parameter, config, seed), kind.peak(config, parameter)});
  }
}

double Optimizer::squared_norm() const {
  double total = 0;
  for (const auto& entry : entries_) total += ops::squared_sum(entry.parameter->grad);
  return total;
}

void Optimizer::apply(int64_t step, double grad_factor) {
  const double factor = learning_rate_factor(config_, step, total_steps_);
  // Every thread takes the next parameter until none is left. A small stage is not worth more than one.
  constexpr int64_t kNumbersPerThread = 1 << 16;
  int64_t numbers = 0;
  for (const auto& entry : entries_) numbers += entry.parameter->value.numel();
  const int64_t threads = std::min<int64_t>({at::get_num_threads(), kUpdatesAtOnce, 1 + numbers / kNumbersPerThread});
  std::atomic<size_t> next = 0;
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const OneThread alone;  // where parallel_for did not divide the work either: the bits are the same then
    for (size_t i; (i = next++) < entries_.size();) {
      const auto& [parameter, rule, peak] = entries_[i];
      rule->update({step + 1, {peak.lr * factor, peak.decay * factor}, grad_factor});
    }
  });
}

void Optimizer::change_over(const at::Tensor& q) {
  for (auto& entry : entries_) {
    if (entry.parameter->is_coordinates()) entry.rule->change_over(q);
  }
}

std::vector<Optimizer::SavedMoment> Optimizer::state() {
  std::vector<SavedMoment> moments;
  for (auto& entry : entries_) {
    for (auto& [name, tensor] : entry.rule->state()) moments.push_back({entry.parameter, name, tensor});
  }
  return moments;
}

}  // namespace thinpipe
