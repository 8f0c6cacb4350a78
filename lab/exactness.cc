#include "lab/exactness.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "lab/lab.h"
#include "lab/pattern_batches.h"
#include "lab/reference_model.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 53;

// In the order of the stages. The pipeline must be between steps, or finished.
std::vector<Parameter*> parameters_of(InProcessPipeline& pipeline, const RunConfig& config) {
  std::vector<Parameter*> all;
  for (int64_t i = 0; i < config.pipeline.stages; ++i) {
    for (auto& parameter : pipeline.worker(static_cast<size_t>(i)).stage().parameters().all()) {
      all.push_back(&parameter);
    }
  }
  return all;
}

void move_off_start(Parameter& parameter, int64_t d) {
  if (parameter.kind == ParameterKind::kGain) {
    parameter.value.add_(at::linspace(-0.4, 0.5, parameter.value.numel(), at::kDouble));
  }
  if (parameter.name.starts_with("anchors.") && parameter.columns() == d && parameter.rows() > d) {
    parameter.value.mul_(at::linspace(0.5, 1.5, d, at::kDouble).add(0.1 * (parameter.name.back() - '0')));
  } else if (parameter.name.starts_with("anchors.") || parameter.name.starts_with("previous.")) {
    parameter.value.add_(at::arange(parameter.value.numel(), at::kDouble).view_as(parameter.value).sin().mul(0.4));
  }
}

// The reference's gradient of what this parameter represents, in the parameter's own coordinates.
at::Tensor expected_gradient(const Parameter& parameter, const TensorMap& gradients, const at::Tensor& u) {
  if (parameter.full_width == 0) return gradients.at(parameter.name);
  if (parameter.name == "embedding_coordinates") return gradients.at("token_table").mm(u);
  const auto stem = parameter.name.substr(0, parameter.name.size() - 2);
  return gradients.at(stem + "wp" + parameter.name.back()).mm(u);
}

}  // namespace

bool worse(double error, double worst) { return !std::isnan(worst) && !(error <= worst); }

ExactnessError measure_exactness(const RunConfig& config) {
  TP_CHECK(config.train.precision == Precision::kFloat64, "the reference computes in float64");
  PatternBatches batches(config.train, kVocab);
  InProcessPipeline pipeline(config, kVocab, batches);
  const auto parameters = parameters_of(pipeline, config);
  TensorMap values;
  for (auto* parameter : parameters) {
    move_off_start(*parameter, config.model.d);
    values[parameter->name] = parameter->value;
  }
  at::Tensor u, t_fixed;
  if (auto* side = pipeline.worker(0).stage().subspace()) {
    u = side->u();
    t_fixed =
        FixedTable(config.train.seed, kVocab, config.model.d, config.model.subspace.anchor_std, u.options()).whole();
  }
  const auto tokens = batches.step(0);
  double count = 0;
  for (const auto& batch : tokens) count += static_cast<double>(batch.size(0) * (batch.size(1) - 1));
  // Computed before the pipeline's step, whose commit changes the weights.
  const auto weights = u.defined() ? materialise(config.model, values, u) : values;
  const auto expected = reference_gradients(config.model, weights, t_fixed, tokens, 1 / count);

  const auto outcome = pipeline.step(0);
  const double loss = outcome.loss, expected_loss = expected.loss_sum / count;
  ExactnessError error{std::abs(loss - expected_loss) / expected_loss, 0, "", 0};
  for (const auto* parameter : parameters) {
    const auto wanted = expected_gradient(*parameter, expected.gradients, u);
    const double relative = ((parameter->grad - wanted).norm() / wanted.norm()).item<double>();
    if (worse(relative, error.gradient)) error.gradient = relative, error.worst = parameter->name;
  }
  if (auto* side = pipeline.worker(static_cast<size_t>(config.pipeline.stages - 1)).stage().subspace()) {
    const double factor = outcome.grad_factor;
    const auto wanted = expected.second_moment * (factor * factor);  // C consists of gradients as applied
    error.second_moment = ((side->second_moment() - wanted).norm() / wanted.norm()).item<double>();
  }
  return error;
}

namespace {

// What all cases have in common.
RunConfig base_case() {
  RunConfig base;
  auto& model = base.model;
  model.mode = ModelMode::kSubspace;
  model.d = 24;
  model.blocks = 6;
  model.heads = 4;
  model.kv_heads = 2;
  model.mlp_width = 20;
  model.init_std = 0.3;
  model.subspace.rank = 8;
  model.subspace.anchor_std = 0.7;
  model.subspace.update_every = base.train.steps;  // an update follows later, so C is collected
  base.train.seq_len = 7;
  base.train.microbatch = 2;
  base.train.microbatches = 3;
  base.train.seed = 11;
  base.train.precision = Precision::kFloat64;
  base.boundary.pack = Pack::kFp64;
  base.pipeline.stages = 4;
  base.pipeline.cuts = {2, 1, 1, 2};
  return base;
}

}  // namespace

std::vector<ExactnessCase> exactness_cases() {
  using Change = std::function<void(RunConfig&)>;
  const auto cuts = [](const std::vector<int64_t>& parts) -> Change {
    return [parts](RunConfig& c) { c.pipeline.cuts = parts, c.pipeline.stages = static_cast<int64_t>(parts.size()); };
  };
  const Change sinusoidal = [](RunConfig& c) {
    c.model.positions = Positions::kSinusoidal;
    c.model.position_scale = 0.7;
  };
  const Change qk_norm = [](RunConfig& c) { c.model.qk_norm = true; };
  const Change multi_head = [](RunConfig& c) { c.model.kv_heads = 4; };
  const Change stage_anchors = [](RunConfig& c) {
    c.model.subspace.anchors = Anchors::kStage;
    c.model.subspace.anchor_groups = {2, 1, 1, 2};
  };
  const Change previous = [](RunConfig& c) { c.model.subspace.previous = Previous::kTable; };
  const Change low_rank = [](RunConfig& c) { c.model.subspace.anchor_rank = 5; };
  const auto tail = [](int64_t n) -> Change { return [n](RunConfig& c) { c.model.subspace.full_rank_tail = n; }; };
  const std::vector<std::pair<std::string, std::vector<Change>>> changes = {
      {"rope, grouped queries", {}},
      {"uncut", {cuts({6})}},
      {"sinusoidal", {sinusoidal}},
      {"qk-norm, uneven cut", {qk_norm, cuts({1, 1, 1, 3})}},
      {"multi-head, two stages", {multi_head, cuts({3, 3})}},
      {"cut before the tail", {cuts({2, 2, 1, 1})}},
      {"tail 0", {tail(0)}},
      {"tail 2", {tail(2)}},
      {"stage anchors", {stage_anchors}},
      {"stage anchors, groups joined", {stage_anchors, cuts({3, 3})}},
      {"stage anchors, tail 0", {stage_anchors, tail(0)}},
      {"stage anchors, tail 2, sinusoidal", {stage_anchors, tail(2), sinusoidal}},
      {"previous token", {stage_anchors, previous}},
      {"previous token, groups joined, qk-norm", {stage_anchors, previous, cuts({3, 3}), qk_norm}},
      {"previous token, tail 0", {stage_anchors, previous, tail(0)}},
      {"previous token, tail 2, sinusoidal", {stage_anchors, previous, tail(2), sinusoidal}},
      {"anchors of rank 5", {stage_anchors, low_rank}},
      {"anchors of rank 5, previous token, tail 0", {stage_anchors, previous, low_rank, tail(0)}},
      {"anchors of rank 5, previous token, groups joined", {stage_anchors, previous, low_rank, cuts({3, 3})}},
  };
  std::vector<ExactnessCase> cases;
  for (const auto& [name, list] : changes) {
    for (const auto form : {InputForm::kTable, InputForm::kDirect}) {
      auto config = base_case();
      for (const auto& change : list) change(config);
      config.model.subspace.input = form;
      cases.push_back({name + (form == InputForm::kTable ? " (table)" : " (direct)"), config});
    }
  }
  return cases;
}

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

}  // namespace thinpipe
