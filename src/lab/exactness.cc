#include "lab/exactness.h"

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <memory>

#include "boundary/boundary.h"
#include "lab/reference_model.h"
#include "model/stage.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 53;
constexpr uint64_t kSeed = 11;
constexpr double kLossScale = 0.05;

std::vector<at::Tensor> microbatches(const TrainConfig& train) {
  std::vector<at::Tensor> batches;
  const int64_t count = train.microbatch * (train.seq_len + 1);
  for (int64_t m = 0; m < train.microbatches; ++m) {
    batches.push_back(
        at::arange(count, at::kLong).mul(5 + m).add(m).remainder(kVocab - m).view({train.microbatch, -1}));
  }
  return batches;
}

class CutModel {
 public:
  explicit CutModel(const RunConfig& config) : config_(config) {
    int64_t first = 0;
    for (const int64_t count : blocks_per_stage(config)) {
      stages_.push_back(std::make_unique<Stage>(config.model, kVocab,
                                                BlockRange{first, first + count, config.model.blocks},
                                                Precision::kFloat64, kSeed, at::Device("cpu")));
      boundaries_.push_back(
          make_boundary(config, kVocab, static_cast<int64_t>(boundaries_.size()), stages_.back()->options()));
      first += count;
    }
    for (auto* parameter : parameters()) move_off_start(*parameter);
  }

  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> all;
    for (auto& stage : stages_) {
      for (auto& parameter : stage->parameters().all()) all.push_back(&parameter);
    }
    return all;
  }

  // One microbatch forward and back through the packed boundaries; returns its loss sum.
  double run(const at::Tensor& tokens, uint64_t number) {
    const int64_t sequences = tokens.size(0);
    std::vector<StagePass> passes;
    ForwardContent content{{tokens}, {}};
    for (size_t i = 0; i < stages_.size(); ++i) {
      passes.push_back(stages_[i]->forward(content.batch, content.stream, kLossScale));
      if (i + 1 == stages_.size()) break;
      const auto message = boundaries_[i]->encode_forward({content.batch, passes.back().output}, {0, number});
      content = boundaries_[i]->decode_forward(message, sequences).take();
    }
    const double loss_sum = passes.back().loss_sum;
    at::Tensor grad;
    for (size_t i = stages_.size(); i-- > 0;) {
      grad = stages_[i]->backward(std::move(passes[i]), grad);
      if (i > 0)
        grad = boundaries_[i - 1]
                   ->decode_backward(boundaries_[i - 1]->encode_backward(grad, {0, number}), sequences)
                   .take();
    }
    return loss_sum;
  }

  Stage& first_stage() { return *stages_.front(); }

 private:
  void move_off_start(Parameter& parameter) const {
    if (parameter.kind == ParameterKind::kGain) {
      parameter.value.add_(at::linspace(-0.4, 0.5, parameter.value.numel(), at::kDouble));
    }
    if (parameter.name.starts_with("anchors.")) {
      parameter.value.mul_(
          at::linspace(0.5, 1.5, config_.model.d, at::kDouble).add(0.1 * (parameter.name.back() - '0')));
    }
  }

  const RunConfig& config_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::unique_ptr<Boundary>> boundaries_;  // after stage i; the last is not used
};

// The reference's gradient of what this parameter stands for, in the parameter's own coordinates.
at::Tensor expected_gradient(const Parameter& parameter, const TensorMap& gradients, const at::Tensor& u) {
  if (parameter.full_width == 0) return gradients.at(parameter.name);
  if (parameter.name == "embedding_coordinates") return gradients.at("token_table").mm(u);
  const auto stem = parameter.name.substr(0, parameter.name.size() - 2);
  return gradients.at(stem + "wp" + parameter.name.back()).mm(u);
}

}  // namespace

ExactnessError measure_exactness(const RunConfig& config) {
  CutModel cut(config);
  TensorMap parameters;
  for (const auto* parameter : cut.parameters()) parameters[parameter->name] = parameter->value;
  at::Tensor u, t_fixed;
  if (auto* side = cut.first_stage().subspace()) {
    u = side->u();
    t_fixed = FixedTable(kSeed, kVocab, config.model.d, config.model.subspace.anchor_std, u.options()).whole();
  }
  const auto batches = microbatches(config.train);
  const auto weights = u.defined() ? materialise(config.model, parameters, u) : parameters;
  const auto expected = reference_gradients(config.model, weights, t_fixed, batches, kLossScale);

  double loss_sum = 0;
  for (size_t m = 0; m < batches.size(); ++m) loss_sum += cut.run(batches[m], m);
  ExactnessError error{std::abs(loss_sum - expected.loss_sum) / expected.loss_sum, 0, ""};
  for (const auto* parameter : cut.parameters()) {
    const auto wanted = expected_gradient(*parameter, expected.gradients, u);
    const double relative = ((parameter->grad - wanted).norm() / wanted.norm()).item<double>();
    if (!(relative <= error.gradient)) error.gradient = relative, error.worst = parameter->name;
  }
  return error;
}

std::vector<ExactnessCase> exactness_cases() {
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
  base.train.seq_len = 7;
  base.train.microbatch = 2;
  base.train.microbatches = 3;
  base.boundary = {BoundaryKind::kSubspace, Pack::kFp64};
  base.pipeline.stages = 4;
  base.pipeline.cuts = {2, 1, 1, 2};

  using Change = std::function<void(RunConfig&)>;
  const auto cuts = [](std::vector<int64_t> parts) -> Change {
    return [parts](RunConfig& c) { c.pipeline.cuts = parts, c.pipeline.stages = static_cast<int64_t>(parts.size()); };
  };
  const Change sinusoidal = [](RunConfig& c) { c.model.positions = Positions::kSinusoidal; };
  const Change qk_norm = [](RunConfig& c) { c.model.qk_norm = true; };
  const Change multi_head = [](RunConfig& c) { c.model.kv_heads = 4; };
  const Change split = [](RunConfig& c) { c.model.subspace.norm = NormForm::kSplit; };
  const Change stage_anchors = [](RunConfig& c) {
    c.model.subspace.anchors = Anchors::kStage;
    c.model.subspace.anchor_groups = {2, 1, 1, 2};
  };
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
      {"split norm", {split}},
      {"split norm, tail 0", {split, tail(0)}},
      {"split norm, qk-norm, uneven cut", {split, qk_norm, cuts({1, 4, 1})}},
      {"stage anchors", {stage_anchors}},
      {"stage anchors, groups joined", {stage_anchors, cuts({3, 3})}},
      {"stage anchors, tail 0", {stage_anchors, tail(0)}},
      {"stage anchors, tail 2, sinusoidal", {stage_anchors, tail(2), sinusoidal}},
      {"stage anchors, split norm", {stage_anchors, split}},
      {"stage anchors, split norm, sinusoidal", {stage_anchors, split, sinusoidal}},
  };
  std::vector<ExactnessCase> cases;
  for (const auto& [name, list] : changes) {
    for (const auto form : {InputForm::kTable, InputForm::kDirect}) {
      auto config = base;
      for (const auto& change : list) change(config);
      config.model.subspace.input = form;
      cases.push_back({name + (form == InputForm::kTable ? " (table)" : " (direct)"), config});
    }
  }
  return cases;
}

}  // namespace thinpipe
