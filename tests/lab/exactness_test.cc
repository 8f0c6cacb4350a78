// A cut loses nothing: compares every model of the lab's list with the uncut d-wide reference: loss, every gradient,
// and the second moment that the tap has collected.
#include "lab/exactness.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>

namespace thinpipe {
namespace {

class Exactness : public testing::TestWithParam<ExactnessCase> {};

// Uses the pipeline that trains: the gradients are those it would apply, scaled by 1 / (tokens of the step).
TEST_P(Exactness, LossGradientsAndTapMatchTheUncutReference) {
  auto config = GetParam().config;
  for (const auto schedule : {ScheduleKind::k1f1b, ScheduleKind::kGpipe}) {
    SCOPED_TRACE(schedule == ScheduleKind::kGpipe ? "gpipe" : "1f1b");
    config.pipeline.schedule = schedule;
    validate(config);
    const auto error = measure_exactness(config);
    EXPECT_LT(error.loss, 1e-12);
    EXPECT_LT(error.gradient, 1e-12) << error.worst;
    EXPECT_LT(error.second_moment, 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::ValuesIn(exactness_cases()), [](const auto& model) {
  std::string name;
  for (const char c : model.param.name) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(Exactness, CoarserPacksGiveLargerErrors) {
  auto config = exactness_cases().front().config;
  double previous = 1e-12;
  for (const auto pack : {Pack::kFp32, Pack::kBf16, Pack::kInt4}) {
    config.boundary.pack = pack;
    const double error = measure_exactness(config).gradient;
    EXPECT_GT(error, previous);
    previous = error;
  }
}

TEST(Exactness, NanIsNeverTakenForExact) {
  // A head of zeros sends nothing back: every gradient but the head's own, which comes last, gives 0 / 0.
  auto config = exactness_cases().front().config;
  config.model.init_std = 0;
  EXPECT_TRUE(std::isnan(measure_exactness(config).gradient));
  EXPECT_TRUE(worse(NAN, 1e-15));
  EXPECT_FALSE(worse(1e-15, NAN));
  EXPECT_FALSE(worse(NAN, NAN));
  EXPECT_TRUE(worse(2e-15, 1e-15));
  EXPECT_FALSE(worse(1e-15, 1e-15));
}

TEST(Exactness, HoldsForADenseModel) {
  auto config = exactness_cases().front().config;
  config.model.mode = ModelMode::kDense;
  EXPECT_LT(measure_exactness(config).gradient, 1e-12);
  config.model.positions = Positions::kSinusoidal;
  config.model.position_scale = 0.7;
  EXPECT_LT(measure_exactness(config).gradient, 1e-12);
}

}  // namespace
}  // namespace thinpipe
