#include "optim/learning_rate.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

OptimConfig with(LrSchedule schedule) {
  OptimConfig config;
  config.schedule = schedule;
  config.warmup = 10;
  config.decay_fraction = 0.25;
  config.min_lr_ratio = 0.1;
  return config;
}

TEST(LearningRate, WarmsUpLinearlyToThePeak) {
  for (const auto schedule : {LrSchedule::kConstant, LrSchedule::kCosine, LrSchedule::kLinear, LrSchedule::kWsd}) {
    EXPECT_DOUBLE_EQ(learning_rate_factor(with(schedule), 0, 100), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate_factor(with(schedule), 9, 100), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate_factor(with(schedule), 10, 100), 1.0);
  }
}

TEST(LearningRate, CosineAndLinearMeetHalfWay) {
  EXPECT_NEAR(learning_rate_factor(with(LrSchedule::kCosine), 55, 100), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_factor(with(LrSchedule::kLinear), 55, 100), 0.55, 1e-12);
  EXPECT_GT(learning_rate_factor(with(LrSchedule::kCosine), 30, 100),
            learning_rate_factor(with(LrSchedule::kLinear), 30, 100));
}

TEST(LearningRate, WsdStaysAtThePeakThenFallsToTheFloor) {
  EXPECT_EQ(learning_rate_factor(with(LrSchedule::kWsd), 74, 100), 1.0);
  EXPECT_LT(learning_rate_factor(with(LrSchedule::kWsd), 75, 100), 1.0);
  EXPECT_NEAR(learning_rate_factor(with(LrSchedule::kWsd), 99, 100), 0.1, 1e-12);
}

TEST(LearningRate, NeverRisesAfterWarmUp) {
  for (const auto schedule : {LrSchedule::kConstant, LrSchedule::kCosine, LrSchedule::kLinear, LrSchedule::kWsd}) {
    for (int step = 10; step < 120; ++step) {
      EXPECT_LE(learning_rate_factor(with(schedule), step + 1, 100), learning_rate_factor(with(schedule), step, 100));
      EXPECT_GE(learning_rate_factor(with(schedule), step, 100), 0.1 - 1e-12);
    }
  }
}

}  // namespace
}  // namespace thinpipe
