// lab drift: what happens if a rule of the method is broken. The program prevents or refuses each of these (the tests
// named below show it); this shows what it prevents.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/result.h"
#include "base/rng.h"
#include "lab/exactness.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "lab/literal_optimizer.h"
#include "model/fill.h"
#include "model/fixed_table.h"
#include "model/grassmann.h"
#include "model/stage.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDriftVocab = 53;

RunConfig drift_config() {
  auto config = exactness_cases().front().config;
  config.model.blocks = 3;
  config.model.subspace.update_every = 0;
  config.optim.kind = OptimizerKind::kRowAdamw;
  config.optim.lr = 0.003;
  config.optim.schedule = LrSchedule::kConstant;
  config.train.steps = 200;
  return config;
}

at::Tensor drift_tokens(int64_t step) {
  return at::arange(16, at::kLong).mul(3 + step % 5).add(step).remainder(kDriftVocab).view({2, 8});
}

at::Tensor drift_table(const RunConfig& config) {
  return FixedTable(1, kDriftVocab, config.model.d, config.model.subspace.anchor_std,
                    at::TensorOptions().dtype(at::kDouble))
      .whole();
}

// The share of W outside S after each step of the literal optimiser.
std::vector<double> drift_by_step(LiteralRule rule, int64_t steps) {
  const auto config = drift_config();
  Stage stage(config.model, kDriftVocab, whole_model(config.model), Precision::kFloat64, 1, at::Device("cpu"));
  TensorMap parameters;
  for (const auto& parameter : stage.parameters().all()) parameters[parameter.name] = parameter.value;
  const auto& side = *stage.subspace();
  LiteralTraining training(config, materialise(config.model, parameters, side.u()), drift_table(config), side.basis(),
                           rule);
  std::vector<double> drifts;
  for (int64_t step = 0; step < steps; ++step) {
    training.step(step, {drift_tokens(step)});
    drifts.push_back(training.drift());
  }
  return drifts;
}

struct LossAndGradients {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

// Two stages of one model in float64. The second has the table `table` and, if given, another basis than the first.
LossAndGradients two_stages(const at::Tensor& table, const Basis* second_basis) {
  auto config = drift_config();
  config.model.table = kTableFromCorpus;  // any name: the tables are given
  const int64_t blocks = config.model.blocks;
  const auto own = drift_table(config).to(at::kFloat);
  Stage first(config.model, kDriftVocab, {0, 1, blocks}, Precision::kFloat64, 1, at::Device("cpu"), own);
  Stage second(config.model, kDriftVocab, {1, blocks, blocks}, Precision::kFloat64, 1, at::Device("cpu"), table);
  if (second_basis != nullptr) second.subspace()->set_basis(*second_basis);
  const TokenBatch batch{drift_tokens(0)};
  auto pass = first.forward(batch, {}, 1.0);
  auto end = second.forward(batch, pass.output, 1.0);
  LossAndGradients result{end.loss_sum, {}};
  first.backward(std::move(pass), second.backward(std::move(end), {}));
  for (auto* stage : {&first, &second}) {
    for (const auto& parameter : stage->parameters().all()) result.gradients[parameter.name] = parameter.grad;
  }
  return result;
}

double distance(const LossAndGradients& broken, const LossAndGradients& right) {
  double error = 0, size = 0;
  for (const auto& [name, grad] : right.gradients) {
    error += (broken.gradients.at(name) - grad).square().sum().item<double>();
    size += grad.square().sum().item<double>();
  }
  return std::sqrt(error / size);
}

}  // namespace

void lab_drift(const ExperimentOptions& options) {
  const int64_t steps = options.quick ? 20 : 200;
  Experiment experiment("drift", "What breaks if a rule of the method is broken?", options, 3);
  const auto by_step = experiment.part("optimisers", fmt::format("optimisers {}", steps), [&]() -> Json {
    return {{"row_adamw", drift_by_step(LiteralRule::kRowAdamw, steps)},
            {"adamw", drift_by_step(LiteralRule::kAdamw, steps)}};
  });
  Plot plot{"share of the output projections outside S", "steps", "|W - W U U^T| / |W|", {}, true, true};
  std::map<std::string, double> last;
  for (const char* name : {"row_adamw", "adamw"}) {
    Series series{name, {}};
    const auto drifts = by_step.at(name).get<std::vector<double>>();
    for (size_t i = 0; i < drifts.size(); ++i) series.points.emplace_back(i + 1, std::max(drifts[i], 1e-18));
    last[name] = drifts.back();
    plot.series.push_back(std::move(series));
  }
  fmt::print("the literal optimiser, d wide, after {} steps: share of W outside S\n", steps);
  fmt::print("  row-wise AdamW {:.1e}\n  AdamW          {:.1e}\n", last["row_adamw"], last["adamw"]);
  fmt::print("  in a run: cannot happen, weights are kept as coordinates in S\n\n");

  const auto config = drift_config();
  const auto own = drift_table(config).to(at::kFloat);
  const auto right = two_stages(own, nullptr);
  const auto table = experiment.part("a wrong row", "a wrong row", [&]() -> Json {
    auto wrong = own.clone();
    const auto row = drift_tokens(0)[0][3].item<int64_t>();
    wrong[row].copy_(
        fill_random(CounterRng(9, "wrong"), {config.model.d}, config.model.subspace.anchor_std, own.options()));
    const auto broken = two_stages(wrong, nullptr);
    return {{"loss_error", std::abs(broken.loss / right.loss - 1)}, {"gradient_error", distance(broken, right)}};
  });
  fmt::print("one row of T_fixed differs on one of two stages: loss off by {:.2g}, gradient by {:.2g} (relative)\n",
             table.at("loss_error").get<double>(), table.at("gradient_error").get<double>());
  fmt::print("  in a run: refused, a table's file must have the SHA-256 that the config names\n\n");

  const auto basis = experiment.part("an old basis", "an old basis", [&]() -> Json {
    const Stage stage(config.model, kDriftVocab, whole_model(config.model), Precision::kFloat64, 1, at::Device("cpu"));
    const auto& now = stage.subspace()->basis();
    const auto g = fill_random(CounterRng(5, "gradients"), {64, config.model.d}, 1.0, at::kDouble);
    const auto older = grassmann_step(now, g.t().mm(g), 0.1);
    const auto broken = two_stages(own, &older);
    return {{"loss_error", std::abs(broken.loss / right.loss - 1)}, {"gradient_error", distance(broken, right)}};
  });
  fmt::print("one of two stages has the basis of another version: loss off by {:.2g}, gradient by {:.2g} (relative)\n",
             basis.at("loss_error").get<double>(), basis.at("gradient_error").get<double>());
  fmt::print("  in a run: refused, every packet names the version of its basis\n");

  auto& result = experiment.result();
  result["row_adamw_drift"] = last["row_adamw"];
  result["adamw_drift"] = last["adamw"];
  result["wrong_row"] = table;
  result["old_basis"] = basis;
  experiment.finish(
      fmt::format("AdamW takes {:.0f} % of the weights out of S in {} steps; one wrong row of the table changes the "
                  "gradient by {:.0f} %, an old basis by {:.0f} %. A run does none of these: it keeps coordinates, and "
                  "refuses other tables and other versions.",
                  100 * last["adamw"], steps, 100 * table.at("gradient_error").get<double>(),
                  100 * basis.at("gradient_error").get<double>()),
      {plot});
}

}  // namespace thinpipe
