// A run that is stopped and resumed with another number of stages computes the same losses as an undisturbed run, up to
// rounding. Messages are not rounded here (fp32, fp64), so only the order of sums differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "config/model_spec.h"
#include "saved_run.h"

namespace thinpipe {
namespace {

using test::kTinyVocab;
using test::ScratchFolder;
using test::TinyCorpus;
using test::TinyRun;
using Cuts = std::vector<int64_t>;

constexpr int64_t kSteps = 20;

struct Model {
  std::string name;
  ModelMode mode = ModelMode::kSubspace;
  int64_t tail = 1;
  Anchors anchors = Anchors::kFixed;
  Previous previous = Previous::kNone;
  int64_t anchor_rank = 0;
  OptimizerKind optimizer = OptimizerKind::kMuon;
  Positions positions = Positions::kRope;
  Precision precision = Precision::kFloat64;
};

RunConfig config_of(const Model& model, const Cuts& cuts) {
  auto config = test::tiny_config(model.mode);
  config.model.blocks = 6;
  config.model.positions = model.positions;
  config.model.subspace.full_rank_tail = model.tail;
  config.model.subspace.anchors = model.anchors;
  config.model.subspace.previous = model.previous;
  config.model.subspace.anchor_rank = model.anchor_rank;
  if (model.anchors == Anchors::kStage) config.model.subspace.anchor_groups = {1, 1, 2, 2};
  config.pipeline.cuts = cuts;
  config.pipeline.stages = static_cast<int64_t>(cuts.size());
  config.optim.kind = model.optimizer;
  config.train.precision = model.precision;
  config.boundary.pack = model.precision == Precision::kFloat64 ? Pack::kFp64 : Pack::kFp32;
  validate(config);
  return config;
}

double largest_dropped_share(const StepResult& result) {
  double largest = 0;
  for (const auto& stage : result.stages) largest = std::max(largest, stage.dropped_share());
  return largest;
}

class OtherCuts : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    TinyRun whole(config_of(GetParam(), kFour), corpus_);
    for (int64_t step = 0; step < kSteps; ++step) undisturbed_.push_back(whole.step(step));
    undisturbed_loss_ = whole.validate();
  }
  double tolerance() const { return GetParam().precision == Precision::kFloat64 ? 1e-12 : 1e-5; }

  // Steps [from, to) of that run must equal those of the undisturbed one.
  void expect_same_steps(TinyRun& run, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      const auto found = run.step(step);
      const auto& expected = undisturbed_[static_cast<size_t>(step)];
      EXPECT_NEAR(found.loss, expected.loss, tolerance() * expected.loss) << "step " << step;
      EXPECT_NEAR(largest_dropped_share(found), largest_dropped_share(expected), 1e-4) << "step " << step;
      worst_ = std::max(worst_, std::abs(found.loss - expected.loss) / expected.loss);
    }
  }

  const Cuts kFour{1, 1, 2, 2}, kTwo{2, 4}, kThree{1, 3, 2};
  const TinyCorpus corpus_;
  const ScratchFolder folder_;
  std::vector<StepResult> undisturbed_;
  double undisturbed_loss_ = 0;
  double worst_ = 0;
};

// The basis changes at the commit of step 6 (from 0) and again at step 13: the first restart comes directly after a
// change, the second between two.
TEST_P(OtherCuts, FromFourStagesToTwoToThreeComputesTheSame) {
  {
    TinyRun four(config_of(GetParam(), kFour), corpus_);
    expect_same_steps(four, 0, 7);
    four.save(folder_, "seven-");
  }
  {
    TinyRun two(config_of(GetParam(), kTwo), corpus_);
    two.restore(folder_, "seven-", 7);
    expect_same_steps(two, 7, 12);
    two.save(folder_, "twelve-");
  }
  TinyRun three(config_of(GetParam(), kThree), corpus_);
  three.restore(folder_, "twelve-", 12);
  expect_same_steps(three, 12, kSteps);
  EXPECT_NEAR(three.validate(), undisturbed_loss_, tolerance() * undisturbed_loss_);
  std::printf("largest relative difference of a loss: %.1e\n", worst_);
}

// Checkpoint files do not depend on the cuts: stages with other cuts that restore them write the same files.
TEST_P(OtherCuts, SaveTheSameFiles) {
  TinyRun four(config_of(GetParam(), kFour), corpus_);
  four.steps(0, 9);
  four.save(folder_, "four-");
  TinyRun two(config_of(GetParam(), kTwo), corpus_);
  two.restore(folder_, "four-", 9);
  two.save(folder_, "two-");
  const auto& model = config_of(GetParam(), kTwo).model;
  for (const auto& unit : model_units(model, whole_model(model))) {
    EXPECT_EQ(read_file(folder_ / ("two-" + unit)).take(), read_file(folder_ / ("four-" + unit)).take()) << unit;
  }
}

std::vector<Model> models() {
  std::vector<Model> all;
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat64}) {
    const std::string suffix = precision == Precision::kFloat32 ? "_f32" : "_f64";
    const auto add = [&](Model model) {
      model.name += suffix;
      model.precision = precision;
      all.push_back(model);
    };
    add({.name = "fixed_muon"});
    add({.name = "tail0_adamw", .tail = 0, .optimizer = OptimizerKind::kAdamw});
    add({.name = "tail2_row_adamw", .tail = 2, .optimizer = OptimizerKind::kRowAdamw});
    add({.name = "previous_muon", .anchors = Anchors::kStage, .previous = Previous::kTable});
    add({.name = "anchors_of_rank_4_muon", .anchors = Anchors::kStage, .previous = Previous::kTable, .anchor_rank = 4});
    add({.name = "anchors_tail0_row_adamw",
         .tail = 0,
         .anchors = Anchors::kStage,
         .previous = Previous::kTable,
         .optimizer = OptimizerKind::kRowAdamw});
    add({.name = "anchors_tail2_sinusoidal",
         .tail = 2,
         .anchors = Anchors::kStage,
         .optimizer = OptimizerKind::kAdamw,
         .positions = Positions::kSinusoidal});
    add({.name = "dense_muon", .mode = ModelMode::kDense});
    add({.name = "dense_adamw", .mode = ModelMode::kDense, .optimizer = OptimizerKind::kAdamw});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, OtherCuts, testing::ValuesIn(models()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace thinpipe
