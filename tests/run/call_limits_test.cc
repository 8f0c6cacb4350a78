// What keeps a flood cheap: the budget of calls and the pace of a stream. (RefusalLog is tested with the service.)
#include "run/coordinator/call_limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace thinpipe {
namespace {

TEST(CallBudget, CallerWithoutBudget_HasToWait) {
  CallBudget budget;
  const TimePoint now{};
  int taken = 0;
  for (int i = 0; i < 150; ++i) taken += budget.take("flood", 1, now) == Duration{} ? 1 : 0;
  EXPECT_EQ(taken, 100);
  EXPECT_EQ(budget.take("another", 1, now), Duration{});
  EXPECT_GT(budget.take("flood", 1, now), Duration{});
  EXPECT_EQ(budget.take("flood", 1, now + std::chrono::seconds(2)), Duration{});
}

// A member has sixteen connections with eight calls each.
TEST(CallBudget, CallsAtTheSameTime_AreServedNoFasterThanOthers) {
  CallBudget budget;
  TimePoint now{};
  std::multimap<TimePoint, int> answers;  // each is followed by another call at once
  for (int i = 0; i < 128; ++i) answers.emplace(now, i);
  int served = 0;
  while (answers.begin()->first < TimePoint{} + std::chrono::seconds(60)) {
    now = answers.begin()->first;
    answers.erase(answers.begin());
    answers.emplace(now + budget.take("flood", 1, now), 0);
    ++served;
  }
  EXPECT_LE(served, 100 + 60 * 50 + 128);
}

TEST(CallBudget, NobodyWaitsForLong) {
  CallBudget budget;
  Duration longest{};
  for (int i = 0; i < 10'000; ++i) longest = std::max(longest, budget.take("flood", 1, {}));
  EXPECT_EQ(longest, CallBudget::kLongestWait);
}

TEST(CallBudget, CheapCalls_CostLess) {
  CallBudget budget;
  int taken = 0;
  for (int i = 0; i < 10'000; ++i) taken += budget.take("first stage", 0.02, {}) == Duration{} ? 1 : 0;
  EXPECT_NEAR(taken, 5000, 1);  // 0.02 is not exact
}

TEST(CallBudget, RemembersABoundedNumberOfCallers) {
  CallBudget budget;
  for (int i = 0; i < 20'000; ++i) (void)budget.take(std::to_string(i), 1, {});
  EXPECT_LE(budget.remembered(), CallBudget::kMostCallers);
}

// Reads such messages one after the other, each after its wait. Returns how many were read in that time.
int64_t read_for(Pace& pace, size_t bytes, TimePoint& now, Duration time) {
  int64_t count = 0;
  for (const auto end = now + time; now < end; ++count) now += pace.take(bytes, now);
  return count;
}

TEST(Pace, MessagesWithoutAPause_AreReadAtItsRate) {
  TimePoint now{};
  Pace pace(now);
  EXPECT_NEAR(static_cast<double>(read_for(pace, 20, now, std::chrono::seconds(50))), 50 * 200 + 100, 100);
}

TEST(Pace, LargeMessages_CostMore) {
  TimePoint now{};
  Pace pace(now);
  const auto count = read_for(pace, 300 << 10, now, std::chrono::seconds(50));
  EXPECT_NEAR(static_cast<double>(count), 50 * 200 / 76.0, 3);
}

TEST(Pace, EveryWaitIsShort_SoThatTheReaderTakesTheLockNowAndThenOnly) {
  TimePoint now{};
  Pace pace(now);
  (void)read_for(pace, 0, now, std::chrono::seconds(1));
  for (int i = 0; i < 100; ++i) {
    const auto wait = pace.take(0, now);
    EXPECT_NEAR(seconds(wait), 0.005, 1e-6);
    now += wait;
  }
}

TEST(Pace, OnlyAStreamThatIsFullForAMinute_IsAFlood) {
  TimePoint now{};
  Pace pace(now);
  (void)read_for(pace, 20, now, std::chrono::seconds(50));
  EXPECT_FALSE(pace.is_flood(now));
  now += std::chrono::seconds(1);  // nothing came: what waited is read
  (void)read_for(pace, 20, now, std::chrono::seconds(50));
  EXPECT_FALSE(pace.is_flood(now));
  (void)read_for(pace, 20, now, std::chrono::seconds(20));
  EXPECT_TRUE(pace.is_flood(now));
}

TEST(Pace, WorkerWithAHundredStepsASecond_NeverWaits) {
  TimePoint now{};
  Pace pace(now);
  for (int i = 0; i < 10'000; ++i, now += std::chrono::milliseconds(10)) EXPECT_EQ(pace.take(600, now), Duration{});
}

}  // namespace
}  // namespace thinpipe
