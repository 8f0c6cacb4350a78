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
  for (auto& parameter : parameters.all()) entries_.push_back(make_entry(parameter));
}

Optimizer::Entry Optimizer::make_entry(Parameter& parameter) const {
  const auto kind = parameter.kind;
  const bool coordinates = parameter.full_width > 0;
  const bool embedding = kind == ParameterKind::kEmbedding || kind == ParameterKind::kEmbeddingCoordinates;
  double weight_decay = kind == ParameterKind::kGain ? 0.0 : config_.weight_decay;
  if (config_.kind == OptimizerKind::kMuon && (kind == ParameterKind::kMatrix || kind == ParameterKind::kCoordinates)) {
    return {&parameter, make_muon(parameter, config_, weight_decay), config_.lr};
  }
  double lr = config_.lr;
  if (config_.kind == OptimizerKind::kMuon) lr = config_.adamw_lr * (embedding ? config_.embedding_lr_scale : 1.0);
  if (config_.kind == OptimizerKind::kRowAdamw && coordinates) {
    return {&parameter, make_row_adamw(parameter, config_, weight_decay), lr};
  }
  // Per-coordinate moments move a row by lr sqrt(k) where lr sqrt(d) is meant (METHOD 2). A rule decays by lr times the
  // decay, which must not grow with the factor: W = A U^T is to lose the share that a dense W loses.
  if (coordinates) {
    const double factor =
        std::sqrt(static_cast<double>(parameter.full_width) / static_cast<double>(parameter.value.size(1)));
    lr *= factor;
    weight_decay /= factor;
  }
  return {&parameter, make_adamw(parameter, config_, weight_decay), lr};
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

void Optimizer::change_over(const at::Tensor& q) {
  for (auto& entry : entries_) {
    if (entry.parameter->full_width > 0) entry.rule->change_over(q);
  }
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& entry : entries_) {
    for (auto& [name, tensor] : entry.rule->state()) tensors.emplace_back(entry.parameter->name + "." + name, tensor);
  }
  return tensors;
}

}  // namespace thinpipe
