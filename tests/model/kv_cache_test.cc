// Reading a sequence in parts, with a cache, gives the loss of reading it whole: for every kind of model, and however
// the sequence is divided. The naive twin is Stage::evaluate, which knows of no cache.
#include "model/kv_cache.h"

#include <ATen/ATen.h>

#include <vector>

#include "model/numeric.h"
#include "model/small_models.h"

namespace thinpipe {
namespace {

constexpr int64_t kVocab = 23;

std::vector<ModelCase> cases() {
  std::vector<ModelCase> all{{"dense", small_model(ModelMode::kDense)}};
  for (const auto& model : subspace_models({0, 1, 2})) all.push_back(model);
  for (size_t i = 0, count = all.size(); i < count; ++i) {
    all.push_back({all[i].name + ", sinusoidal", all[i].config});
    all.back().config.positions = Positions::kSinusoidal;
  }
  all.push_back({"dense, qk norm", small_model(ModelMode::kDense)});
  all.back().config.qk_norm = true;
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

TEST(KvCache, ReadingInPartsGivesTheLossOfReadingWhole) {
  const auto tokens = at::arange(10, at::kLong).mul(7).add(3).remainder(kVocab);
  for (const auto& [name, config] : cases()) {
    const auto stage = uncut_stage(config, kVocab);
    const double whole = stage.evaluate({tokens.unsqueeze(0)}, {}).loss_sum;
    for (const std::vector<int64_t>& parts :
         {std::vector<int64_t>{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 3}, {1, 8}}) {
      KvCache cache(config, 9, stage.options());
      EXPECT_NEAR(loss_in_parts(stage, tokens, cache, parts), whole, 1e-12 * whole) << name;
      EXPECT_EQ(cache.length(), 9);
    }
  }
}

TEST(KvCache, AShortenedCacheForgetsWhatCameAfter) {
  const auto config = small_model(ModelMode::kDense);
  const auto stage = uncut_stage(config, kVocab);
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
