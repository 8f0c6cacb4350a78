#include "pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace thinpipe {
namespace {

using Order = std::vector<Pass>;

constexpr Pass f(int64_t m) { return {true, m}; }
constexpr Pass b(int64_t m) { return {false, m}; }

TEST(Schedule, GpipeRunsAllForwardsThenAllBackwards) {
  for (size_t stage = 0; stage < 3; ++stage)
    EXPECT_EQ(passes(ScheduleKind::kGpipe, stage, 3, 2, {}), (Order{f(0), f(1), b(0), b(1)}));
}

TEST(Schedule, OneForwardOneBackwardAlternatesAfterItsWarmup) {
  EXPECT_EQ(passes(ScheduleKind::k1f1b, 0, 2, 3, {1, 0}), (Order{f(0), f(1), b(0), f(2), b(1), b(2)}));
  EXPECT_EQ(passes(ScheduleKind::k1f1b, 1, 2, 3, {1, 0}), (Order{f(0), b(0), f(1), b(1), f(2), b(2)}));
}

TEST(Schedule, WithoutDepthsTheWarmupIsTheNumberOfStagesAhead) {
  for (size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(passes(ScheduleKind::k1f1b, stage, 4, 6, {}), passes(ScheduleKind::k1f1b, stage, 4, 6, {3, 2, 1, 0}));
  }
}

TEST(Schedule, RefusesDepthsThatIncrease) {
  EXPECT_DEATH(passes(ScheduleKind::k1f1b, 0, 2, 4, {0, 1}), "warm-up depths 0, 1 are negative or increase");
  EXPECT_DEATH(passes(ScheduleKind::k1f1b, 0, 2, 4, {1, -1}), "warm-up depths 1, -1 are negative or increase");
}

// Warm-up depths that do not increase; the first is at most M + 2, more than there are microbatches.
std::vector<int64_t> random_warmup(int64_t stages, int64_t microbatches, std::mt19937_64& random) {
  std::vector<int64_t> warmup;
  for (int64_t most = microbatches + 2; static_cast<int64_t>(warmup.size()) < stages; most = warmup.back())
    warmup.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)));
  return warmup;
}

TEST(Schedule, EveryStageRunsEveryMicrobatchOnceInOrderWithAtMostItsWarmupPlusOneInFlight) {
  std::mt19937_64 random(1);
  for (int64_t p = 1; p <= 6; ++p) {
    for (int64_t m = 1; m <= 12; ++m) {
      const auto warmup = random_warmup(p, m, random);
      for (size_t stage = 0; stage < warmup.size(); ++stage) {
        for (const auto kind : {ScheduleKind::kGpipe, ScheduleKind::k1f1b}) {
          int64_t forwards = 0, backwards = 0, held = 0;
          for (const auto& pass : passes(kind, stage, p, m, warmup)) {
            ASSERT_EQ(pass.microbatch, pass.forward ? forwards : backwards);
            ++(pass.forward ? forwards : backwards);
            ASSERT_LE(backwards, forwards);
            held = std::max(held, forwards - backwards);
          }
          ASSERT_EQ(forwards, m);
          ASSERT_EQ(backwards, m);
          ASSERT_EQ(held, kind == ScheduleKind::kGpipe ? m : std::min(m, warmup[stage] + 1));
        }
      }
    }
  }
}

// Runs the stages one pass at a time in a random order; returns whether all finish. Queues of M messages hold
// everything that a step sends, so a stage only ever waits to receive, and running one stage never blocks another: if
// one order finishes, all do (Kahn's process networks).
bool runs_to_its_end(const std::vector<Order>& stages, std::mt19937_64& random) {
  const size_t count = stages.size();
  std::vector<size_t> next(count, 0);
  std::vector<int64_t> down(count, 0), up(count, 0);  // messages between the stages i and i+1
  const auto can_run = [&](size_t stage) {
    if (next[stage] == stages[stage].size()) return false;
    if (stages[stage][next[stage]].forward) return stage == 0 || down[stage - 1] > 0;
    return stage + 1 == count || up[stage] > 0;
  };
  while (true) {
    std::vector<size_t> ready;
    for (size_t stage = 0; stage < count; ++stage) {
      if (can_run(stage)) ready.push_back(stage);
    }
    if (ready.empty()) break;
    const size_t stage = ready[random() % ready.size()];
    const bool forward = stages[stage][next[stage]++].forward;
    if (forward && stage > 0) --down[stage - 1];
    if (forward && stage + 1 < count) ++down[stage];
    if (!forward && stage + 1 < count) --up[stage];
    if (!forward && stage > 0) ++up[stage - 1];
  }
  for (size_t stage = 0; stage < count; ++stage) {
    if (next[stage] < stages[stage].size()) return false;
  }
  return true;
}

TEST(Schedule, EveryInterleavingFinishes) {
  std::mt19937_64 random(2);
  for (int64_t p = 1; p <= 6; ++p) {
    for (int64_t m = 1; m <= 12; ++m) {
      const auto warmup = random_warmup(p, m, random);
      for (const auto kind : {ScheduleKind::kGpipe, ScheduleKind::k1f1b}) {
        std::vector<Order> stages;
        for (size_t stage = 0; stage < warmup.size(); ++stage) stages.push_back(passes(kind, stage, p, m, warmup));
        ASSERT_TRUE(runs_to_its_end(stages, random)) << p << " stages, " << m << " microbatches";
      }
    }
  }
  // The rule is necessary: a stage with more warm-up than the one before it waits for ever.
  EXPECT_FALSE(runs_to_its_end({{f(0), b(0), f(1), b(1)}, {f(0), f(1), b(0), b(1)}}, random));
}

TEST(CoveringWarmup, MatchesTheFormula) {
  // 2 n 0.75 / 3 for n = 3, 2, 1, 0 hops: 1.5, 1, 0.5, 0.
  EXPECT_EQ(covering_warmup(4, 16, 3, 0.75), (std::vector<int64_t>{3 + 2, 2 + 1, 1 + 1, 0}));
  EXPECT_EQ(covering_warmup(4, 4, 3, 0.75), (std::vector<int64_t>{4, 3, 2, 0}));
  EXPECT_EQ(covering_warmup(4, 16, 3, 0), (std::vector<int64_t>{3, 2, 1, 0}));
  EXPECT_EQ(covering_warmup(1, 16, 3, 18), (std::vector<int64_t>{0}));
}

TEST(CoveringWarmup, IsNotRaisedByARoundingError) {
  // 2 * 3 * 0.1 / (0.1 + 0.1) is 3, but 3.0000000000000004 in double.
  EXPECT_EQ(covering_warmup(4, 16, 0.1 + 0.1, 0.1), (std::vector<int64_t>{6, 4, 2, 0}));
}

TEST(CoveringWarmup, OverAVerySlowLink_UsesAllMicrobatches) {
  EXPECT_EQ(covering_warmup(3, 6, 1e-300, 1e300), (std::vector<int64_t>{6, 6, 0}));
}

}  // namespace
}  // namespace thinpipe
