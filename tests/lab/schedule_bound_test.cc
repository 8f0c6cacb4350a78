#include "lab/schedule_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace thinpipe {
namespace {

using Stages = std::vector<std::vector<Pass>>;

Stages gpipe(int64_t stages, int64_t microbatches) {
  Stages all;
  for (size_t i = 0; i < static_cast<size_t>(stages); ++i)
    all.push_back(passes(ScheduleKind::kGpipe, i, stages, microbatches, {}));
  return all;
}

Stages one_forward_one_backward(int64_t microbatches, const std::vector<int64_t>& warmup) {
  Stages all;
  for (size_t i = 0; i < warmup.size(); ++i) {
    all.push_back(passes(ScheduleKind::k1f1b, i, static_cast<int64_t>(warmup.size()), microbatches, warmup));
  }
  return all;
}

ScheduleTimes uniform_times(size_t stages, double forward_s, double backward_s, LinkTimes link) {
  return {std::vector<double>(stages, forward_s), std::vector<double>(stages, backward_s),
          std::vector<LinkTimes>(stages - 1, link), std::vector<LinkTimes>(stages - 1, link)};
}

TEST(ScheduleBound, OneStageTakesItsComputeTime) {
  EXPECT_DOUBLE_EQ(schedule_bound_s(gpipe(1, 4), uniform_times(1, 1, 2, {})), 12);
  EXPECT_DOUBLE_EQ(schedule_bound_s(one_forward_one_backward(4, {0}), uniform_times(1, 1, 2, {})), 12);
}

TEST(ScheduleBound, WithFreeLinksMatchesTheTextbookFormula) {
  // (M + p - 1)(f + b) for both: 1f1b saves memory, not time.
  EXPECT_DOUBLE_EQ(schedule_bound_s(gpipe(4, 8), uniform_times(4, 1, 2, {})), 11 * 3);
  EXPECT_DOUBLE_EQ(schedule_bound_s(one_forward_one_backward(8, {3, 2, 1, 0}), uniform_times(4, 1, 2, {})), 11 * 3);
}

TEST(ScheduleBound, AddsTransferAndDelayPerHop) {
  // One microbatch: forward 1, hop 4 + 3, forward 10, backward 20, hop back 6 + 5, backward 2.
  const ScheduleTimes times{{1, 10}, {2, 20}, {{4, 3}}, {{6, 5}}};
  EXPECT_DOUBLE_EQ(schedule_bound_s(gpipe(2, 1), times), 1 + 7 + 10 + 20 + 11 + 2);
}

TEST(ScheduleBound, LinkTransfersOneMessageAtATimeButDelaysInParallel) {
  // Forwards alone. Sent at 1, 2, 3; on the wire 1-5, 5-9, 9-13; arrive at 105, 109, 113; the last is computed at 114.
  const std::vector<Pass> forwards{{true, 0}, {true, 1}, {true, 2}};
  EXPECT_DOUBLE_EQ(schedule_bound_s({forwards, forwards}, uniform_times(2, 1, 0, {4, 100})), 114);
}

TEST(ScheduleBound, SmallOneForwardOneBackwardMatchesAHandCalculation) {
  // p = 2, M = 2, f = 1, b = 2, hop 0 + 1. Stage 1: f0 2-3, b0 3-5, f1 (there at 3) 5-6, b1 6-8.
  // Stage 0: f0 0-1, f1 1-2, b0 (there at 6) 6-8, b1 (there at 9) 9-11.
  EXPECT_DOUBLE_EQ(schedule_bound_s(one_forward_one_backward(2, {1, 0}), uniform_times(2, 1, 2, {0, 1})), 11);
  // Without warm-up stage 0 waits out a round trip per microbatch: f 0-1, stage 1 2-5, b 6-8, and again.
  EXPECT_DOUBLE_EQ(schedule_bound_s(one_forward_one_backward(2, {0, 0}), uniform_times(2, 1, 2, {0, 1})), 16);
}

TEST(ScheduleBound, CoveringWarmupHidesTheRoundTrip) {
  const LinkTimes link{0.5, 4};  // a round trip of 9 s is three times the compute: the formula needs no rounding
  const auto times = uniform_times(4, 1, 2, link);
  const auto warmup = covering_warmup(4, 64, 3, link.delay_s + link.transfer_s);
  // No schedule can be faster: the first microbatch must get to the last stage, which is then always busy, and the last
  // one must get back.
  const double best = 64 * 3 + 3 * (3 + 2 * 4.5);
  EXPECT_DOUBLE_EQ(schedule_bound_s(one_forward_one_backward(64, warmup), times), best);
  EXPECT_GT(schedule_bound_s(one_forward_one_backward(64, {3, 2, 1, 0}), times), 2 * best);
  EXPECT_LT(warmup[0] + 1, 64 / 4);  // microbatches held
}

// The pace of the slowest loop of stages i to j (docs/schedules.md). 60 microbatches are whole rounds of every loop
// here.
TEST(ScheduleBound, TheSlowestLoopSetsThePace) {
  constexpr double kCompute = 3;
  constexpr double kHop = 1.5;
  const auto times = uniform_times(3, 1, 2, {0.5, 1});
  const std::vector<std::vector<int64_t>> warmups{{0, 0, 0}, {2, 1, 0}, {3, 1, 0}, {3, 2, 0}, {4, 2, 0}, {5, 1, 1}};
  for (const auto& warmup : warmups) {
    double pace_s = kCompute;
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = i; j < 3; ++j) {
        const auto hops = static_cast<double>(j - i);
        const auto loop = static_cast<double>(warmup[i] - warmup[j] + 1);
        pace_s = std::max(pace_s, ((hops + 1) * kCompute + 2 * hops * kHop) / loop);
      }
    }
    const double short_s = schedule_bound_s(one_forward_one_backward(60, warmup), times);
    const double long_s = schedule_bound_s(one_forward_one_backward(120, warmup), times);
    EXPECT_NEAR((long_s - short_s) / 60, pace_s, 1e-12) << warmup[0] << " " << warmup[1] << " " << warmup[2];
  }
}

}  // namespace
}  // namespace thinpipe
