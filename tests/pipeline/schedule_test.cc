// The schedules, their announced peaks and the bound of their time. The proof of the peaks has schedule_proof_test.cc.
#include "pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "schedules.h"

namespace thinpipe {
namespace {

using test::all_kinds;
using test::b;
using test::classic_warmup;
using test::f;
using test::random_warmup;
using test::rb;
using test::rf;
using test::sb;
using test::sf;
using Kind = ActionKind;

TEST(Schedule, GpipeRunsAllForwardsThenAllBackwards) {
  const auto schedule = make_gpipe(3, 2);
  ASSERT_EQ(schedule.stages.size(), 3u);
  EXPECT_EQ(schedule.stages[0].actions, (std::vector<Action>{f(0), sf(0), f(1), sf(1), rb(0), b(0), rb(1), b(1)}));
  EXPECT_EQ(schedule.stages[1].actions,
            (std::vector<Action>{rf(0), f(0), sf(0), rf(1), f(1), sf(1), rb(0), b(0), sb(0), rb(1), b(1), sb(1)}));
  EXPECT_EQ(schedule.stages[2].actions, (std::vector<Action>{rf(0), f(0), rf(1), f(1), b(0), sb(0), b(1), sb(1)}));
}

TEST(Schedule, OneForwardOneBackwardAlternatesAfterItsWarmup) {
  const auto schedule = make_1f1b(2, 3, {1, 0});
  EXPECT_EQ(schedule.stages[0].actions,
            (std::vector<Action>{f(0), sf(0), f(1), sf(1), rb(0), b(0), f(2), sf(2), rb(1), b(1), rb(2), b(2)}));
  EXPECT_EQ(schedule.stages[1].actions,
            (std::vector<Action>{rf(0), f(0), b(0), sb(0), rf(1), f(1), b(1), sb(1), rf(2), f(2), b(2), sb(2)}));
}

TEST(Schedule, ForwardOnlyKeepsNothing) {
  const auto schedule = make_forward_only(2, 2);
  EXPECT_EQ(schedule.stages[0].actions, (std::vector<Action>{f(0), sf(0), f(1), sf(1)}));
  EXPECT_EQ(schedule.stages[1].actions, (std::vector<Action>{rf(0), f(0), rf(1), f(1)}));
  EXPECT_EQ(schedule.stages[0].max_in_flight, 0);
  EXPECT_EQ(schedule.stages[0].forward_capacity, 2);
  EXPECT_EQ(schedule.stages[1].backward_capacity, 0);
}

TEST(Schedule, OneStageTalksToNobody) {
  EXPECT_EQ(make_gpipe(1, 2).stages[0].actions, (std::vector<Action>{f(0), f(1), b(0), b(1)}));
  EXPECT_EQ(make_1f1b(1, 2, {0}).stages[0].actions, (std::vector<Action>{f(0), b(0), f(1), b(1)}));
  EXPECT_EQ(make_gpipe(1, 2).stages[0].forward_capacity, 0);
  EXPECT_EQ(make_gpipe(1, 2).stages[0].backward_capacity, 0);
}

TEST(Schedule, BackwardsRunInTheSameOrderInEveryKind) {
  for (const auto& schedule : {make_gpipe(4, 9), make_1f1b(4, 9, classic_warmup(4)), make_1f1b(4, 9, {7, 5, 5, 1})}) {
    for (const auto& plan : schedule.stages) {
      std::vector<int64_t> backwards;
      for (const auto& action : plan.actions) {
        if (action.kind == Kind::kBackward) backwards.push_back(action.microbatch);
      }
      std::vector<int64_t> ascending(9);
      std::iota(ascending.begin(), ascending.end(), 0);
      EXPECT_EQ(backwards, ascending);
    }
  }
}

// The closed forms follow from the proof's argument; docs/schedules.md derives them.
TEST(Schedule, PeaksHaveTheirClosedFormForAllSizes) {
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = 1; m <= 32; ++m) {
      const auto warmup = random_warmup(p, m, CounterRng(3, static_cast<uint64_t>(p * 100 + m)));
      const auto gpipe = prove(make_gpipe(p, m));
      const auto classic = prove(make_1f1b(p, m, classic_warmup(p)));
      const auto deep = prove(make_1f1b(p, m, warmup));
      const auto evaluation = prove(make_forward_only(p, m));
      ASSERT_TRUE(gpipe.ok() && classic.ok() && deep.ok() && evaluation.ok());
      for (int64_t i = 0; i < p; ++i) {
        const auto stage = static_cast<size_t>(i);
        const int64_t depth = std::min(m, warmup[stage] + 1);
        ASSERT_EQ(gpipe.value().peak_in_flight[stage], m);
        ASSERT_EQ(classic.value().peak_in_flight[stage], std::min(m, p - i));
        ASSERT_EQ(deep.value().peak_in_flight[stage], depth);
        ASSERT_EQ(evaluation.value().peak_in_flight[stage], 0);
        if (i + 1 == p) continue;
        ASSERT_EQ(gpipe.value().peak_forward_queue[stage], m);
        ASSERT_EQ(gpipe.value().peak_backward_queue[stage], m);
        ASSERT_EQ(classic.value().peak_forward_queue[stage], std::min(m, p - i));
        ASSERT_EQ(classic.value().peak_backward_queue[stage], std::min(m, p - i));
        ASSERT_EQ(deep.value().peak_forward_queue[stage], depth);
        ASSERT_EQ(deep.value().peak_backward_queue[stage], depth);
        ASSERT_EQ(evaluation.value().peak_forward_queue[stage], m);
        ASSERT_EQ(evaluation.value().peak_backward_queue[stage], 0);
      }
    }
  }
}

TEST(Schedule, AnnouncesExactlyWhatIsProved) {
  for (const auto& schedule : all_kinds(5, 11)) {
    const auto proof = prove(schedule);
    ASSERT_TRUE(proof.ok()) << proof.error().message;
    for (size_t stage = 0; stage < 5; ++stage) {
      EXPECT_EQ(schedule.stages[stage].max_in_flight, proof.value().peak_in_flight[stage]);
      EXPECT_EQ(schedule.stages[stage].forward_capacity, stage < 4 ? proof.value().peak_forward_queue[stage] : 0);
      EXPECT_EQ(schedule.stages[stage].backward_capacity, stage > 0 ? proof.value().peak_backward_queue[stage - 1] : 0);
    }
  }
}

TEST(CoveringWarmup, GivesTheValuesOfTheFormula) {
  // 2 n (0.5 + 0.25) / 3 for n = 3, 2, 1, 0 hops: 1.5, 1, 0.5, 0.
  EXPECT_EQ(covering_warmup(4, 16, {1, 2, 0.5, 0.25}, 0), (std::vector<int64_t>{3 + 2, 2 + 1, 1 + 1, 0}));
  EXPECT_EQ(covering_warmup(4, 4, {1, 2, 0.5, 0.25}, 0), (std::vector<int64_t>{4, 3, 2, 0}));
  EXPECT_EQ(covering_warmup(4, 16, {1, 2, 0, 0}, 0), classic_warmup(4));
  EXPECT_EQ(covering_warmup(1, 16, {1, 2, 9, 9}, 0), (std::vector<int64_t>{0}));
}

TEST(CoveringWarmup, IsNotRaisedByARoundingError) {
  // 2 * 3 * 0.1 / (0.1 + 0.1) is 3, but 3.0000000000000004 in double.
  EXPECT_EQ(covering_warmup(4, 16, {0.1, 0.1, 0.1, 0}, 0), (std::vector<int64_t>{6, 4, 2, 0}));
}

TEST(CoveringWarmup, TakesAllMicrobatchesWhenTheLinkIsHopeless) {
  EXPECT_EQ(covering_warmup(3, 6, {1e-300, 0, 1e300, 0}, 0), (std::vector<int64_t>{6, 6, 0}));
}

TEST(CoveringWarmup, KeepsTheMicrobatchesInFlightUnderTheMemoryCap) {
  EXPECT_EQ(covering_warmup(4, 16, {1, 2, 0.5, 0.25}, 4), (std::vector<int64_t>{3, 3, 2, 0}));
  EXPECT_EQ(covering_warmup(4, 16, {1, 2, 0.5, 0.25}, 2), (std::vector<int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(covering_warmup(4, 16, {1, 2, 0.5, 0.25}, 1), (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(covering_warmup(4, 4, {1, 2, 0.5, 0.25}, 4), (std::vector<int64_t>{4, 3, 2, 0}));
}

ScheduleTimes uniform_times(size_t stages, double forward_s, double backward_s, LinkTimes link) {
  return {std::vector<double>(stages, forward_s), std::vector<double>(stages, backward_s),
          std::vector<LinkTimes>(stages - 1, link), std::vector<LinkTimes>(stages - 1, link)};
}

TEST(ScheduleBound, OfOneStageIsItsCompute) {
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_gpipe(1, 4), uniform_times(1, 1, 2, {})), 12);
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_1f1b(1, 4, {0}), uniform_times(1, 1, 2, {})), 12);
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_forward_only(1, 4), uniform_times(1, 1, 2, {})), 4);
}

TEST(ScheduleBound, WithFreeLinksIsTheTextbookBubble) {
  // (M + p - 1)(f + b) for both: 1f1b saves memory, not time.
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_gpipe(4, 8), uniform_times(4, 1, 2, {})), 11 * 3);
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_1f1b(4, 8, {3, 2, 1, 0}), uniform_times(4, 1, 2, {})), 11 * 3);
}

TEST(ScheduleBound, AddsTransferAndDelayPerHop) {
  // One microbatch: forward 1, hop 4 + 3, forward 10, backward 20, hop back 6 + 5, backward 2.
  const ScheduleTimes times{{1, 10}, {2, 20}, {{4, 3}}, {{6, 5}}};
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_gpipe(2, 1), times), 1 + 7 + 10 + 20 + 11 + 2);
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_forward_only(2, 1), {{1, 10}, {}, {{4, 3}}, {}}), 1 + 7 + 10);
}

TEST(ScheduleBound, ALinkCarriesOneMessageAtATimeAndDelaysThemTogether) {
  // Sent at 1, 2, 3; on the wire 1-5, 5-9, 9-13; arrive at 105, 109, 113; the last is computed at 114.
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_forward_only(2, 3), {{1, 1}, {}, {{4, 100}}, {}}), 114);
}

TEST(ScheduleBound, OfASmallOneForwardOneBackwardIsAsByHand) {
  // p = 2, M = 2, f = 1, b = 2, hop 0 + 1. Stage 1: f0 2-3, b0 3-5, f1 (there at 3) 5-6, b1 6-8.
  // Stage 0: f0 0-1, f1 1-2, b0 (there at 6) 6-8, b1 (there at 9) 9-11.
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_1f1b(2, 2, {1, 0}), uniform_times(2, 1, 2, {0, 1})), 11);
  // Without warm-up stage 0 waits out a round trip per microbatch: f 0-1, stage 1 2-5, b 6-8, and again.
  EXPECT_DOUBLE_EQ(schedule_bound_s(make_1f1b(2, 2, {0, 0}), uniform_times(2, 1, 2, {0, 1})), 16);
}

TEST(ScheduleBound, CoveringWarmupHidesTheRoundTrip) {
  const LinkTimes link{0.5, 4};  // a round trip of 9 s is three times the compute: the formula rounds nothing
  const auto times = uniform_times(4, 1, 2, link);
  const auto covering = make_1f1b(4, 64, covering_warmup(4, 64, {1, 2, link.delay_s, link.transfer_s}, 0));
  const auto classic = make_1f1b(4, 64, classic_warmup(4));
  // No schedule can do better: the first microbatch has to get to the last stage, which then works all the time, and
  // the last one has to get back.
  const double best = 64 * 3 + 3 * (3 + 2 * 4.5);
  EXPECT_DOUBLE_EQ(schedule_bound_s(covering, times), best);
  EXPECT_GT(schedule_bound_s(classic, times), 2 * best);
  EXPECT_LT(covering.stages[0].max_in_flight, 64 / 4);
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
    const double short_s = schedule_bound_s(make_1f1b(3, 60, warmup), times);
    const double long_s = schedule_bound_s(make_1f1b(3, 120, warmup), times);
    EXPECT_NEAR((long_s - short_s) / 60, pace_s, 1e-12) << warmup[0] << " " << warmup[1] << " " << warmup[2];
  }
}

}  // namespace
}  // namespace thinpipe
