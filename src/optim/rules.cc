#include "optim/rules.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace thinpipe {
namespace {

Rates with_decay(double lr, const OptimConfig& config, const ParameterSpec& spec) {
  return {lr, spec.kind == ParameterKind::kGain ? 0.0 : lr * config.weight_decay};
}

// With moments per coordinate a row moves by lr sqrt(k), but should move by lr sqrt(d) (METHOD 2). Decay uses the
// original rate: it acts on the weight itself, whose size does not depend on the choice of coordinates.
Rates of_coordinates(Rates rates, const ParameterSpec& spec) {
  if (spec.is_coordinates()) {
    rates.lr *= std::sqrt(static_cast<double>(spec.full_width) / static_cast<double>(spec.columns()));
  }
  return rates;
}

Rates main_rates(const OptimConfig& config, const ParameterSpec& spec) { return with_decay(config.lr, config, spec); }

Rates adamw_rates(const OptimConfig& config, const ParameterSpec& spec) {
  return of_coordinates(main_rates(config, spec), spec);
}

Rates adamw_rates_beside_muon(const OptimConfig& config, const ParameterSpec& spec) {
  const bool embedding = spec.kind == ParameterKind::kEmbedding || spec.kind == ParameterKind::kEmbeddingCoordinates;
  const double lr = config.adamw_lr * (embedding ? config.embedding_lr_scale : 1.0);
  return of_coordinates(with_decay(lr, config, spec), spec);
}

bool takes_all(const ParameterSpec&) { return true; }
bool takes_coordinates(const ParameterSpec& spec) { return spec.is_coordinates(); }
bool takes_block_matrices(const ParameterSpec& spec) {
  return spec.kind == ParameterKind::kMatrix || spec.kind == ParameterKind::kCoordinates;
}

constexpr RuleKind kAdamw[] = {{"adamw", takes_all, adamw_rates, adamw_state, adamw_used, make_adamw}};
constexpr RuleKind kRowAdamw[] = {
    {"row_adamw", takes_coordinates, main_rates, row_adamw_state, adamw_used, make_row_adamw},
    {"adamw", takes_all, adamw_rates, adamw_state, adamw_used, make_adamw}};
constexpr RuleKind kMuon[] = {{"muon", takes_block_matrices, main_rates, muon_state, muon_used, make_muon},
                              {"adamw", takes_all, adamw_rates_beside_muon, adamw_state, adamw_used, make_adamw}};

}  // namespace

std::span<const RuleKind> rules_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamw:
      return kAdamw;
    case OptimizerKind::kRowAdamw:
      return kRowAdamw;
    case OptimizerKind::kMuon:
      return kMuon;
  }
  TP_CHECK(false, "unknown optimizer {}", static_cast<int>(kind));
}

double numbers_in(const std::vector<StateTensor>& state) {
  double numbers = 0;
  for (const auto& tensor : state) {
    double product = 1;
    for (const int64_t length : tensor.shape) product *= static_cast<double>(length);
    numbers += product;
  }
  return numbers;
}

const RuleKind& rule_for(OptimizerKind kind, const ParameterSpec& spec) {
  const auto rules = rules_of(kind);
  return *std::find_if(rules.begin(), rules.end(), [&](const RuleKind& rule) { return rule.takes(spec); });
}

}  // namespace thinpipe
