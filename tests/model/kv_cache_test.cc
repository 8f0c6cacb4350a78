// Reading a sequence in parts, with a cache, gives the same loss as reading it at once, for every kind of model and
// every division of the sequence. The naive twin is Stage::evaluate, which uses no cache.
#include "model/kv_cache.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "model/numeric.h"
#include "model/stage.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 23;

ModelConfig dense_model() {
  ModelConfig config;
  config.mode = ModelMode::kDense;
  config.d = 16;
  config.blocks = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.mlp_width = 24;
  config.init_std = 0.3;
  return config;
}

ModelConfig subspace_model(int64_t tail, Anchors anchors, NormForm norm) {
  auto config = dense_model();
  config.mode = ModelMode::kSubspace;
  config.subspace.rank = 5;
  config.subspace.full_rank_tail = tail;
  config.subspace.anchors = anchors;
  if (anchors == Anchors::kStage) config.subspace.anchor_groups = {1, 2};
  config.subspace.norm = norm;
  return config;
}

struct Case {
  std::string name;
  ModelConfig config;
};

std::vector<Case> cases() {
  std::vector<Case> all{{"dense", dense_model()}};
  auto config = dense_model();
  config.qk_norm = true;
  all.push_back({"qk norm", config});
  config = dense_model();
  config.positions = Positions::kSinusoidal;
  all.push_back({"sinusoidal", config});
  for (const int64_t tail : {0, 1, 2}) {
    for (const auto anchors : {Anchors::kFixed, Anchors::kStage}) {
      for (const auto norm : {NormForm::kJoint, NormForm::kSplit}) {
        config = subspace_model(tail, anchors, norm);
        const auto name = "subspace " + std::to_string(tail) + (anchors == Anchors::kStage ? " stage" : " fixed") +
                          (norm == NormForm::kSplit ? " split" : " joint");
        all.push_back({name, config});
        config.positions = Positions::kSinusoidal;
        all.push_back({name + " sinusoidal", config});
      }
    }
  }
  return all;
}

// The loss of the sequence, read in parts of these sizes.
double loss_in_parts(const Stage& stage, const at::Tensor& tokens, KvCache& cache, const std::vector<int64_t>& parts) {
  std::vector<at::Tensor> logits;
  int64_t at = cache.length();
  for (const int64_t rows : parts) {
    logits.push_back(stage.logits(stage.extend(tokens.narrow(0, at, rows), cache)));
    at += rows;
  }
  const auto all = at::cat(logits).log_softmax(1);
  return -all.gather(1, tokens.narrow(0, at - all.size(0) + 1, all.size(0)).unsqueeze(1)).sum().item<double>();
}

TEST(KvCache, ReadingInPartsGivesTheSameLossAsReadingAtOnce) {
  const auto tokens = at::arange(10, at::kLong).mul(7).add(3).remainder(kVocab);
  for (const auto& [name, config] : cases()) {
    const Stage stage(config, kVocab, {0, config.blocks, config.blocks}, Precision::kFloat64, 5, at::Device("cpu"));
    const double whole = stage.evaluate({tokens.unsqueeze(0)}, {}).loss_sum;
    for (const std::vector<int64_t>& parts :
         {std::vector<int64_t>{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 3}, {1, 8}}) {
      KvCache cache(config, 9, stage.options());
      EXPECT_NEAR(loss_in_parts(stage, tokens, cache, parts), whole, 1e-12 * whole) << name;
      EXPECT_EQ(cache.length(), 9);
    }
  }
}

TEST(KvCache, ShortenedCacheForgetsLaterTokens) {
  const auto config = dense_model();
  const Stage stage(config, kVocab, {0, config.blocks, config.blocks}, Precision::kFloat64, 5, at::Device("cpu"));
  const auto tokens = at::arange(10, at::kLong).mul(7).add(3).remainder(kVocab);
  const auto others = at::arange(10, at::kLong).mul(5).add(1).remainder(kVocab);
  KvCache cache(config, 9, stage.options());
  loss_in_parts(stage, others, cache, {3, 6});
  cache.shorten(0);
  const double whole = stage.evaluate({tokens.unsqueeze(0)}, {}).loss_sum;
  EXPECT_NEAR(loss_in_parts(stage, tokens, cache, {5, 4}), whole, 1e-12 * whole);
}

}  // namespace
}  // namespace thinpipe
