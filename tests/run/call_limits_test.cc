// What keeps a flood cheap: the budget of calls. (RefusalLog is tested with the service.)
#include "run/coordinator/call_limits.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

TEST(CallBudget, CallerWithoutBudget_HasToWait) {
  CallBudget budget;
  const TimePoint now{};
  int taken = 0;
  for (int i = 0; i < 500; ++i) taken += budget.take("flood", 1, now) ? 1 : 0;
  EXPECT_EQ(taken, 100);
  EXPECT_TRUE(budget.take("another", 1, now));
  EXPECT_FALSE(budget.take("flood", 1, now));
  EXPECT_TRUE(budget.take("flood", 1, now + std::chrono::seconds(1)));
}

TEST(CallBudget, CheapCalls_CostLess) {
  CallBudget budget;
  int taken = 0;
  for (int i = 0; i < 10'000; ++i) taken += budget.take("first stage", 0.02, {}) ? 1 : 0;
  EXPECT_NEAR(taken, 5000, 1);  // 0.02 is not exact
}

TEST(CallBudget, RemembersABoundedNumberOfCallers) {
  CallBudget budget;
  for (int i = 0; i < 20'000; ++i) (void)budget.take(std::to_string(i), 1, {});
  EXPECT_LE(budget.remembered(), CallBudget::kMostCallers);
}

}  // namespace
}  // namespace thinpipe
