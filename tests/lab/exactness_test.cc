// The subspace model cut into stages against the uncut d-wide reference (lab/reference_model.h): float64, every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "lab/reference_model.h"
#include "model/stage.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 23;

ModelConfig base_model() {
  ModelConfig config;
  config.mode = ModelMode::kSubspace;
  config.d = 24;
  config.blocks = 6;
  config.heads = 4;
  config.kv_heads = 2;
  config.mlp_width = 20;
  config.init_std = 0.3;
  config.subspace.rank = 6;
  config.subspace.full_rank_tail = 1;
  config.subspace.anchor_std = 0.7;
  return config;
}

std::vector<at::Tensor> microbatches() {
  std::vector<at::Tensor> batches;
  for (int64_t m = 0; m < 3; ++m) {
    batches.push_back(at::arange(2 * 8, at::kLong).mul(5 + m).add(m).remainder(kVocab - m).view({2, 8}));
  }
  return batches;
}

double compare(const ModelConfig& config, const std::vector<int64_t>& cuts) {
  std::vector<std::unique_ptr<Stage>> stages;
  int64_t first = 0;
  for (const int64_t count : cuts) {
    stages.push_back(std::make_unique<Stage>(config, kVocab, BlockRange{first, first + count, config.blocks},
                                             Precision::kFloat64, 11, at::Device("cpu")));
    first += count;
  }
  TensorMap parameters;
  for (auto& stage : stages) {
    for (auto& parameter : stage->parameters().all()) {
      // Gains and anchors away from their first values, so that a forgotten factor shows.
      if (parameter.kind == ParameterKind::kGain) {
        parameter.value.add_(at::linspace(-0.4, 0.5, parameter.value.numel(), at::kDouble));
      }
      if (parameter.name.starts_with("anchors.")) {
        parameter.value.mul_(at::linspace(0.5, 1.5, config.d, at::kDouble).add(0.1 * (parameter.name.back() - '0')));
      }
      parameters[parameter.name] = parameter.value;
    }
  }
  const auto u = stages[0]->subspace()->u();
  const FixedTable fixed(11, kVocab, config.d, config.subspace.anchor_std, u.options());
  const auto expected = reference_gradients(config, materialise(config, parameters, u), fixed.whole(), microbatches(), 0.05);

  double loss_sum = 0;
  for (const auto& tokens : microbatches()) {
    std::vector<StagePass> passes;
    at::Tensor stream;
    for (auto& stage : stages) {
      passes.push_back(stage->forward({tokens}, stream, 0.05));
      stream = passes.back().output;
    }
    loss_sum += passes.back().loss_sum;
    at::Tensor grad;
    for (size_t i = stages.size(); i-- > 0;) grad = stages[i]->backward(std::move(passes[i]), grad);
  }
  double worst = std::abs(loss_sum - expected.loss_sum) / expected.loss_sum;
  for (auto& stage : stages) {
    for (auto& parameter : stage->parameters().all()) {
      std::string name = parameter.name;
      const bool coordinates = parameter.full_width > 0;
      if (name == "embedding_coordinates") name = "token_table";
      if (coordinates && name != "token_table") name = name.substr(0, name.size() - 2) + "wp" + name.back();
      auto wanted = expected.gradients.at(name);
      if (coordinates) wanted = wanted.mm(u);
      const double error = ((parameter.grad - wanted).norm() / wanted.norm()).item<double>();
      EXPECT_LT(error, 1e-12) << parameter.name;
      worst = std::max(worst, error);
    }
  }
  return worst;
}

struct Case {
  const char* name;
  std::function<void(ModelConfig&)> change;
  std::vector<int64_t> cuts;
};

class Exactness : public testing::TestWithParam<Case> {};

TEST_P(Exactness, LossAndEveryGradientMatchTheUncutReference) {
  for (const auto form : {InputForm::kTable, InputForm::kDirect}) {
    auto config = base_model();
    GetParam().change(config);
    config.subspace.input = form;
    EXPECT_LT(compare(config, GetParam().cuts), 1e-12) << (form == InputForm::kTable ? "table" : "direct");
  }
}

void stage_anchors(ModelConfig& config) {
  config.subspace.anchors = Anchors::kStage;
  config.subspace.anchor_groups = {2, 1, 1, 2};
}

INSTANTIATE_TEST_SUITE_P(
    Models, Exactness,
    testing::Values(
        Case{"rope", [](ModelConfig&) {}, {2, 1, 1, 2}},
        Case{"uncut", [](ModelConfig&) {}, {6}},
        Case{"sinusoidal", [](ModelConfig& c) { c.positions = Positions::kSinusoidal; }, {2, 1, 1, 2}},
        Case{"qk_norm", [](ModelConfig& c) { c.qk_norm = true; }, {1, 1, 1, 3}},
        Case{"multi_head", [](ModelConfig& c) { c.kv_heads = 4; }, {3, 3}},
        Case{"tail0", [](ModelConfig& c) { c.subspace.full_rank_tail = 0; }, {2, 1, 1, 2}},
        Case{"tail2", [](ModelConfig& c) { c.subspace.full_rank_tail = 2; }, {2, 1, 1, 2}},
        Case{"split", [](ModelConfig& c) { c.subspace.norm = NormForm::kSplit; }, {2, 1, 1, 2}},
        Case{"split_tail0", [](ModelConfig& c) { c.subspace.norm = NormForm::kSplit; c.subspace.full_rank_tail = 0; }, {2, 1, 1, 2}},
        Case{"stage_anchors", stage_anchors, {2, 1, 1, 2}},
        Case{"stage_anchors_joined", stage_anchors, {3, 3}},
        Case{"stage_anchors_tail0", [](ModelConfig& c) { stage_anchors(c); c.subspace.full_rank_tail = 0; }, {2, 1, 1, 2}},
        Case{"stage_anchors_tail2_sinusoidal",
             [](ModelConfig& c) { stage_anchors(c); c.subspace.full_rank_tail = 2; c.positions = Positions::kSinusoidal; },
             {2, 1, 1, 2}},
        Case{"stage_anchors_split_sinusoidal",
             [](ModelConfig& c) { stage_anchors(c); c.subspace.norm = NormForm::kSplit; c.positions = Positions::kSinusoidal; },
             {2, 1, 1, 2}},
        Case{"split_qk_norm_uneven", [](ModelConfig& c) { c.subspace.norm = NormForm::kSplit; c.qk_norm = true; }, {1, 4, 1}}),
    [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace thinpipe
