// lab exactness and lab optimizer.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/exactness.h"
#include "lab/lab.h"
#include "lab/literal_optimizer.h"
#include "model/stage.h"

namespace thinpipe {
namespace {

RunConfig literal_config() {
  auto config = exactness_cases().front().config;
  config.model.blocks = 3;  // three are enough to show it
  config.model.subspace.update_every = 0;
  config.optim.kind = OptimizerKind::kRowAdamw;
  config.optim.lr = 0.003;
  config.optim.schedule = LrSchedule::kConstant;
  config.train.steps = 200;
  return config;
}

// The largest drift over all steps.
double drift_in_training(LiteralRule rule) {
  const auto config = literal_config();
  constexpr int64_t vocab = 53;
  Stage stage(config.model, vocab, whole_model(config.model), Precision::kFloat64, 1, at::Device("cpu"));
  TensorMap parameters;
  for (const auto& parameter : stage.parameters().all()) parameters[parameter.name] = parameter.value;
  const auto& side = *stage.subspace();
  LiteralTraining training(
      config, materialise(config.model, parameters, side.u()),
      FixedTable(1, vocab, config.model.d, config.model.subspace.anchor_std, side.u().options()).whole(), side.basis(),
      rule);
  double worst = 0;
  for (int64_t step = 0; step < config.train.steps; ++step) {
    training.step(step, {at::arange(16, at::kLong).mul(3 + step % 5).add(step).remainder(vocab).view({2, 8})});
    if (const double drift = training.drift(); worse(drift, worst)) worst = drift;
  }
  return worst;
}

}  // namespace

void lab_exactness(bool json) {
  double worst_loss = 0, worst_gradient = 0, worst_second_moment = 0;
  fmt::print("{:<52} {:>12} {:>12}\n", "float64, fp64 pack, against the uncut reference", "loss", "gradients");
  for (const auto& [name, config] : exactness_cases()) {
    const auto error = measure_exactness(config);
    fmt::print("{:<52} {:>12.1e} {:>12.1e}\n", name, error.loss, error.gradient);
    if (worse(error.loss, worst_loss)) worst_loss = error.loss;
    if (worse(error.gradient, worst_gradient)) worst_gradient = error.gradient;
    if (worse(error.second_moment, worst_second_moment)) worst_second_moment = error.second_moment;
  }
  nlohmann::ordered_json summary = {{"max_rel_grad_error", worst_gradient},
                                    {"max_rel_loss_error", worst_loss},
                                    {"max_rel_second_moment_error", worst_second_moment}};
  fmt::print("\n{:<52} {:>12} {:>12}\n", "the same cut with other packs", "loss", "gradients");
  const std::pair<const char*, Pack> packs[] = {
      {"fp32", Pack::kFp32}, {"bf16", Pack::kBf16}, {"int8", Pack::kInt8}, {"int4", Pack::kInt4}};
  for (const auto& [name, pack] : packs) {
    auto config = exactness_cases().front().config;
    config.boundary.pack = pack;
    const auto error = measure_exactness(config);
    fmt::print("{:<52} {:>12.1e} {:>12.1e}\n", name, error.loss, error.gradient);
    summary["packs"][name] = {{"rel_grad_error", error.gradient}, {"rel_loss_error", error.loss}};
  }
  if (json) fmt::print("{}\n", summary.dump());
}

void lab_optimizer(bool json) {
  const double row = drift_in_training(LiteralRule::kRowAdamw), plain = drift_in_training(LiteralRule::kAdamw);
  fmt::print("largest share of W outside the subspace in 200 steps of the literal form, float64\n");
  fmt::print("  row-wise AdamW (one second moment per row)  {:.1e}\n", row);
  fmt::print("  AdamW (one second moment per element)       {:.1e}\n", plain);
  if (json) fmt::print("{}\n", nlohmann::ordered_json{{"row_adamw_drift", row}, {"adamw_drift", plain}}.dump());
}

}  // namespace thinpipe
