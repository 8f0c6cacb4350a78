#include "optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "optim/learning_rate.h"

namespace thinpipe {

double clip_factor(double squared_norm, double clip) {
  const double norm = std::sqrt(squared_norm);
  return clip > 0 && norm > clip ? clip / norm : 1.0;
}

Optimizer::Optimizer(const OptimConfig& config, int64_t total_steps, ParameterSet& parameters)
    : config_(config), total_steps_(total_steps) {
  for (auto& parameter : parameters.all()) {
    const double weight_decay = parameter.kind == ParameterKind::kGain ? 0.0 : config.weight_decay;
    Entry entry{&parameter, nullptr, config.lr};
    if (config.kind == OptimizerKind::kMuon && parameter.kind == ParameterKind::kMatrix) {
      entry.rule = make_muon(parameter, config, weight_decay);
    } else {
      entry.rule = make_adamw(parameter, config, weight_decay);
      if (config.kind == OptimizerKind::kMuon) {
        entry.peak_lr = config.adamw_lr * (parameter.kind == ParameterKind::kEmbedding ? config.embedding_lr_scale : 1.0);
      }
    }
    entries_.push_back(std::move(entry));
  }
}

double Optimizer::squared_norm() const {
  double total = 0;
  for (const auto& entry : entries_) {
    const auto norm = at::norm(entry.parameter->grad, 2, at::kDouble).item<double>();
    total += norm * norm;
  }
  return total;
}

void Optimizer::apply(int64_t step, double grad_factor) {
  const double factor = learning_rate_factor(config_, step, total_steps_);
  for (auto& entry : entries_) entry.rule->update({step + 1, entry.peak_lr * factor, grad_factor});
}

double Optimizer::learning_rate(int64_t step) const {
  return config_.lr * learning_rate_factor(config_, step, total_steps_);
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& entry : entries_) {
    for (auto& [name, tensor] : entry.rule->state()) tensors.emplace_back(entry.parameter->name + "." + name, tensor);
  }
  return tensors;
}

}  // namespace thinpipe
