// The rule of a step, and what ends a pipeline of threads.
#include "pipeline/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/user_error.h"
#include "tiny_run.h"

namespace thinpipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

control::Ready report_of(double loss_sum, double squared_norm, const std::string& basis_hash = "") {
  control::Ready ready;
  ready.set_epoch(3);
  ready.set_step(7);
  ready.set_loss_sum(loss_sum);
  ready.set_squared_norm(squared_norm);
  ready.set_basis_hash(basis_hash);
  return ready;
}

TEST(Decide, SumsInStageOrderAndClips) {
  // In this order the ones are lost beside 2^53, in the other they are not.
  const double large = 0x1p53;
  const std::vector<control::Ready> reports{report_of(0, large), report_of(0, 1), report_of(20, 1)};
  const auto row = decide(10, 1.0, reports).take();
  EXPECT_EQ(row.step, 7);
  EXPECT_EQ(row.epoch, 3u);
  EXPECT_EQ(row.loss, 2.0);
  EXPECT_EQ(row.squared_norm, large);
  EXPECT_TRUE(row.apply);
  EXPECT_DOUBLE_EQ(row.grad_factor, 1 / std::sqrt(large));
  EXPECT_EQ(decide(10, 0, reports).take().grad_factor, 1.0);
  const auto commit = commit_message(row);
  EXPECT_EQ(commit.epoch(), 3u);
  EXPECT_EQ(commit.step(), 7);
  EXPECT_TRUE(commit.apply());
  EXPECT_EQ(commit.grad_factor(), row.grad_factor);
}

TEST(Decide, SkipsWhatIsNotFinite) {
  const auto norm = decide(10, 1.0, std::vector{report_of(0, kInfinity), report_of(1, 1)}).take();
  EXPECT_FALSE(norm.apply);
  EXPECT_EQ(norm.why, "skipped: the gradients' norm is not finite");
  const auto loss = decide(10, 1.0, std::vector{report_of(0, 1), report_of(std::nan(""), 1)}).take();
  EXPECT_FALSE(loss.apply);
  EXPECT_EQ(loss.why, "skipped: the loss is not finite");
}

TEST(Decide, SaysWhyGradientsWereMadeSmaller) {
  const std::vector reports{report_of(0, 15), report_of(1, 1)};
  EXPECT_EQ(decide(10, 1.0, reports).take().why, "applied with gradients times 0.25: their norm is 4, optim.clip = 1");
  EXPECT_EQ(decide(10, 5.0, reports).take().why, "applied as it is");
}

TEST(Decide, RefusesStagesThatHoldDifferentBases) {
  const auto decided = decide(10, 1.0, std::vector{report_of(0, 1, "a"), report_of(1, 1, "b")});
  ASSERT_FALSE(decided.ok());
  EXPECT_EQ(decided.error().message, "the stages disagree on the next basis");
}

TEST(MetricsLine, IsTheSameBytesForTheSameReports) {
  auto config = test::tiny_config(ModelMode::kSubspace);
  std::vector<control::Ready> reports{report_of(0, 0.25), report_of(144, 0)};
  reports[0].set_forward_bytes(10);
  reports[1].set_backward_bytes(20);
  reports[1].set_dropped_share(0.5);
  auto& basis = *reports[1].mutable_basis();
  basis.set_version(2);
  basis.add_angles_rad(0.5);
  basis.add_angles_rad(0.25);
  basis.set_energy_inside(0.75);
  basis.set_smallest_gram(1);
  basis.set_largest_gram(1);
  config.optim.warmup = 0;
  config.optim.schedule = LrSchedule::kConstant;
  const auto row = decide(72, 1.0, reports).take();
  EXPECT_EQ(metrics_line(config, row, reports).dump(),
            R"({"step":8,"loss":2.0,"grad_norm":0.5,"lr":0.005,"tokens":576,"bytes":[{"forward":10,"backward":20}],)"
            R"("basis":{"version":2,"angles_rad":[0.5,0.25],"energy_inside":0.75,"gram_eigenvalues":[1.0,1.0]},)"
            R"("dropped_share":0.5})");
}

// Tokens until step 1, microbatch 2.
class FailingBatches final : public Batches {
 public:
  FailingBatches(CorpusBatches& source, bool throws) : source_(source), throws_(throws) {}
  Result<TokenBatch> training(int64_t step, int64_t microbatch) override {
    if (step == 0 || microbatch < 2) return source_.training(step, microbatch);
    if (throws_) throw std::out_of_range("no such thing");
    return Error{"out of tokens"};
  }
  Result<TokenBatch> validation(int64_t, int64_t) override { return Error{"nothing to validate on"}; }

 private:
  CorpusBatches& source_;
  bool throws_;
};

TEST(InProcess, AStageThatFailsEndsTheOthersWithItsReason) {
  const test::TinyCorpus corpus;
  auto config = test::tiny_config(ModelMode::kSubspace);
  config.pipeline.stages = 3;
  CorpusBatches source(corpus.prepared(), config.train);
  FailingBatches batches(source, /*throws=*/false);
  {
    InProcessPipeline pipeline(config, test::kTinyVocab, batches);
    pipeline.step(0);
    EXPECT_EQ(test::user_error([&] { pipeline.step(1); }), "stage 0: out of tokens");
  }
  InProcessPipeline pipeline(config, test::kTinyVocab, batches);
  EXPECT_EQ(test::user_error([&] { pipeline.validate(3); }), "stage 0: nothing to validate on");
}

TEST(InProcess, AStagesExceptionComesOutAsItWas) {
  const test::TinyCorpus corpus;
  auto config = test::tiny_config(ModelMode::kDense);
  config.pipeline.stages = 3;
  CorpusBatches source(corpus.prepared(), config.train);
  FailingBatches batches(source, /*throws=*/true);
  InProcessPipeline pipeline(config, test::kTinyVocab, batches);
  pipeline.step(0);
  EXPECT_THROW(pipeline.step(1), std::out_of_range);
}

}  // namespace
}  // namespace thinpipe
