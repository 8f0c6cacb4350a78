// The schedules, the proof of their peaks and the bound of their time. The proof is checked against simulations that
// know nothing of it: all interleavings where they can be counted, random and adverse ones where not.
#include "pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/rng.h"

namespace thinpipe {
namespace {

using Kind = ActionKind;

constexpr Action rf(int64_t m) { return {Kind::kReceiveForward, m}; }
constexpr Action f(int64_t m) { return {Kind::kForward, m}; }
constexpr Action sf(int64_t m) { return {Kind::kSendForward, m}; }
constexpr Action rb(int64_t m) { return {Kind::kReceiveBackward, m}; }
constexpr Action b(int64_t m) { return {Kind::kBackward, m}; }
constexpr Action sb(int64_t m) { return {Kind::kSendBackward, m}; }

// p-1-i: what 1f1b needs on links without delay.
std::vector<int64_t> classic_warmup(int64_t stages) {
  std::vector<int64_t> warmup;
  for (int64_t stage = 0; stage < stages; ++stage) warmup.push_back(stages - 1 - stage);
  return warmup;
}

// Depths that do not increase, each at most the one before (the first at most M + 2, more than there are microbatches).
std::vector<int64_t> random_warmup(int64_t stages, int64_t microbatches, const CounterRng& rng) {
  std::vector<int64_t> warmup;
  auto depth = static_cast<uint64_t>(microbatches + 2);
  for (int64_t stage = 0; stage < stages; ++stage) {
    depth = rng.below(depth + 1, static_cast<uint64_t>(stage));
    warmup.push_back(static_cast<int64_t>(depth));
  }
  return warmup;
}

// The stages as they would run: where each is, and which microbatches wait in each queue. Knows only actions.
class Simulation {
 public:
  explicit Simulation(const Schedule& schedule)
      : schedule_(schedule),
        at(schedule.stages.size(), 0),
        forward(schedule.stages.size() - 1),
        backward(schedule.stages.size() - 1),
        forward_peak(schedule.stages.size() - 1, 0),
        backward_peak(schedule.stages.size() - 1, 0) {}

  bool done(size_t stage) const { return at[stage] == schedule_.stages[stage].actions.size(); }
  bool all_done() const {
    for (size_t stage = 0; stage < at.size(); ++stage) {
      if (!done(stage)) return false;
    }
    return true;
  }

  bool can_run(size_t stage) const {
    if (done(stage)) return false;
    const auto kind = schedule_.stages[stage].actions[at[stage]].kind;
    if (kind == Kind::kReceiveForward) return !forward[stage - 1].empty();
    if (kind == Kind::kReceiveBackward) return !backward[stage].empty();
    return true;
  }

  void run(size_t stage) {
    const auto [kind, microbatch] = schedule_.stages[stage].actions[at[stage]++];
    if (kind == Kind::kSendForward) push(forward[stage], forward_peak[stage], microbatch);
    if (kind == Kind::kSendBackward) push(backward[stage - 1], backward_peak[stage - 1], microbatch);
    if (kind == Kind::kReceiveForward) pop(forward[stage - 1], microbatch);
    if (kind == Kind::kReceiveBackward) pop(backward[stage], microbatch);
  }

 private:
  using Queue = std::vector<int64_t>;
  const Schedule& schedule_;

  static void push(Queue& queue, int64_t& peak, int64_t microbatch) {
    queue.push_back(microbatch);
    peak = std::max(peak, static_cast<int64_t>(queue.size()));
  }
  static void pop(Queue& queue, int64_t microbatch) {
    EXPECT_EQ(queue.front(), microbatch) << "a stage took another message than it planned for";
    queue.erase(queue.begin());
  }

 public:
  std::vector<size_t> at;
  std::vector<Queue> forward, backward;
  std::vector<int64_t> forward_peak, backward_peak;
};

struct Peaks {
  std::vector<int64_t> forward, backward;
  bool deadlock = false;
};

// Every state any interleaving can reach.
Peaks peaks_of_all_interleavings(const Schedule& schedule) {
  Peaks peaks{std::vector<int64_t>(schedule.stages.size() - 1, 0), std::vector<int64_t>(schedule.stages.size() - 1, 0)};
  std::vector<Simulation> open{Simulation(schedule)};
  std::set<std::vector<size_t>> seen{open.back().at};
  while (!open.empty()) {
    const auto state = open.back();
    open.pop_back();
    bool stuck = true;
    for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
      if (!state.can_run(stage)) continue;
      stuck = false;
      auto next = state;
      next.run(stage);
      if (seen.insert(next.at).second) open.push_back(next);
    }
    peaks.deadlock = peaks.deadlock || (stuck && !state.all_done());
    for (size_t link = 0; link + 1 < schedule.stages.size(); ++link) {
      peaks.forward[link] = std::max(peaks.forward[link], static_cast<int64_t>(state.forward[link].size()));
      peaks.backward[link] = std::max(peaks.backward[link], static_cast<int64_t>(state.backward[link].size()));
    }
  }
  return peaks;
}

// One interleaving: every stage has a random urgency for a while, so that some rush ahead and others lag behind.
void expect_random_run_fits(const Schedule& schedule, const CounterRng& rng) {
  Simulation run(schedule);
  std::vector<double> urgency(schedule.stages.size());
  uint64_t draw = 0;
  uint64_t until_change = 0;
  while (true) {
    if (until_change-- == 0) {
      for (auto& value : urgency) value = rng.uniform(draw++);
      until_change = rng.below(64, draw++);
    }
    std::optional<size_t> best;
    for (size_t stage = 0; stage < urgency.size(); ++stage) {
      if (run.can_run(stage) && (!best || urgency[stage] > urgency[*best])) best = stage;
    }
    if (!best) break;
    run.run(*best);
  }
  ASSERT_TRUE(run.all_done());
  for (size_t link = 0; link + 1 < schedule.stages.size(); ++link) {
    ASSERT_LE(run.forward_peak[link], schedule.stages[link].forward_capacity);
    ASSERT_LE(run.backward_peak[link], schedule.stages[link + 1].backward_capacity);
  }
}

std::vector<Schedule> all_kinds(int64_t stages, int64_t microbatches) {
  const CounterRng rng(7, static_cast<uint64_t>(stages * 1000 + microbatches));
  return {make_gpipe(stages, microbatches), make_1f1b(stages, microbatches, classic_warmup(stages)),
          make_1f1b(stages, microbatches, random_warmup(stages, microbatches, rng)),
          make_forward_only(stages, microbatches)};
}

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

TEST(ScheduleProof, EqualsTheWorstOfAllInterleavings) {
  for (int64_t p = 1; p <= 3; ++p) {
    for (int64_t m = 1; m <= 4; ++m) {
      for (const auto& schedule : all_kinds(p, m)) {
        const auto proof = prove(schedule);
        const auto peaks = peaks_of_all_interleavings(schedule);
        ASSERT_TRUE(proof.ok()) << proof.error().message;
        EXPECT_FALSE(peaks.deadlock);
        EXPECT_EQ(proof.value().peak_forward_queue, peaks.forward) << p << " stages, " << m << " microbatches";
        EXPECT_EQ(proof.value().peak_backward_queue, peaks.backward) << p << " stages, " << m << " microbatches";
      }
    }
  }
}

// Any order of forwards and backwards on each stage, deadlocks included, not only those that our generators make.
TEST(ScheduleProof, AgreesWithAllInterleavingsOfRandomSchedules) {
  int64_t deadlocks = 0;
  for (uint64_t round = 0; round < 200; ++round) {
    const CounterRng rng(11, round);
    Schedule schedule = make_gpipe(3, 3);
    for (size_t stage = 0; stage < 3; ++stage) {
      auto& plan = schedule.stages[stage];
      plan.actions.clear();
      plan.forward_capacity = plan.backward_capacity = 3;
      plan.max_in_flight = 0;
      for (int64_t forwards = 0, backwards = 0; backwards < 3;) {
        const auto draw = static_cast<uint64_t>(100 * stage) + static_cast<uint64_t>(forwards + backwards);
        if (forwards < 3 && (forwards == backwards || rng.bits32(draw) % 2 == 0)) {
          if (stage > 0) plan.actions.push_back(rf(forwards));
          plan.actions.push_back(f(forwards));
          if (stage < 2) plan.actions.push_back(sf(forwards));
          ++forwards;
        } else {
          if (stage < 2) plan.actions.push_back(rb(backwards));
          plan.actions.push_back(b(backwards));
          if (stage > 0) plan.actions.push_back(sb(backwards));
          ++backwards;
        }
        plan.max_in_flight = std::max(plan.max_in_flight, forwards - backwards);
      }
    }
    const auto proof = prove(schedule);
    const auto peaks = peaks_of_all_interleavings(schedule);
    ASSERT_EQ(proof.ok(), !peaks.deadlock);
    deadlocks += peaks.deadlock ? 1 : 0;
    if (!proof) continue;
    EXPECT_EQ(proof.value().peak_forward_queue, peaks.forward);
    EXPECT_EQ(proof.value().peak_backward_queue, peaks.backward);
  }
  EXPECT_GT(deadlocks, 20);
  EXPECT_LT(deadlocks, 180);
}

TEST(ScheduleProof, HoldsInThousandsOfRandomInterleavings) {
  for (uint64_t round = 0; round < 750; ++round) {
    const CounterRng rng(5, round);
    const auto p = static_cast<int64_t>(1 + rng.below(8, 1000000));
    const auto m = static_cast<int64_t>(1 + rng.below(24, 1000001));
    for (const auto& schedule : all_kinds(p, m)) {
      ASSERT_NO_FATAL_FAILURE(expect_random_run_fits(schedule, rng)) << p << " stages, " << m << " microbatches";
    }
  }
}

// Capped below the classic p-1-i, down to one microbatch at a time.
TEST(ScheduleProof, HoldsUnderEveryMemoryCap) {
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m : {1, 2, 5, 16}) {
      for (int64_t cap = 1; cap <= 9; ++cap) {
        const auto schedule = make_1f1b(p, m, covering_warmup(p, m, {1, 2, 3, 1}, cap));
        for (const auto& plan : schedule.stages) ASSERT_LE(plan.max_in_flight, cap);
        ASSERT_NO_FATAL_FAILURE(expect_random_run_fits(schedule, CounterRng(9, static_cast<uint64_t>(cap))));
      }
    }
  }
}

class BrokenSchedule : public ::testing::Test {
 protected:
  std::string fault() const {
    const auto proof = prove(schedule);
    return proof.ok() ? "" : proof.error().message;
  }

  Schedule schedule = make_1f1b(2, 3, {1, 0});
  std::vector<Action>& first = schedule.stages[0].actions;
  std::vector<Action>& last = schedule.stages[1].actions;
};

TEST_F(BrokenSchedule, IsSoundBeforeItIsBroken) { EXPECT_EQ(fault(), ""); }

TEST_F(BrokenSchedule, WithAMissingForwardIsCaught) {
  first.erase(first.begin(), first.begin() + 2);
  EXPECT_EQ(fault(), "stage 0, action 0: forward 1, must be forward 0");
}

TEST_F(BrokenSchedule, WithARepeatedForwardIsCaught) {
  first.insert(first.end(), {f(3), sf(3)});
  EXPECT_EQ(fault(), "stage 0, action 12: forward 3 comes after 3 forwards and 3 backwards of 3 microbatches");
}

TEST_F(BrokenSchedule, WithABackwardBeforeItsForwardIsCaught) {
  first.insert(first.begin(), {rb(0), b(0)});
  EXPECT_EQ(fault(), "stage 0, action 0: receive-backward 0 comes after 0 forwards and 0 backwards of 3 microbatches");
}

TEST_F(BrokenSchedule, WithBackwardsOutOfOrderIsCaught) {
  std::swap(first[9], first[11]);
  EXPECT_EQ(fault(), "stage 0, action 9: backward 2, must be backward 1");
}

TEST_F(BrokenSchedule, ThatEndsEarlyIsCaught) {
  first.resize(10);
  EXPECT_EQ(fault(), "stage 0 ends after 3 forwards and 2 backwards of 3 microbatches");
  first.resize(9);
  EXPECT_EQ(fault(), "stage 0, action 9: nothing is left, must be backward 1");
}

TEST_F(BrokenSchedule, WithoutASendIsCaught) {
  first.erase(first.begin() + 1);
  EXPECT_EQ(fault(), "stage 0, action 1: forward 1, must be send-forward 0");
}

TEST_F(BrokenSchedule, WithASendPastTheEndOfThePipelineIsCaught) {
  last.insert(last.begin() + 2, sf(0));
  EXPECT_EQ(fault(), "stage 1, action 2: send-forward 0, must be receive-forward 1");
}

TEST_F(BrokenSchedule, ThatDeadlocksIsCaught) {
  last = make_gpipe(2, 3).stages[1].actions;
  schedule.stages[1].max_in_flight = 3;
  EXPECT_EQ(fault(), "deadlock: stage 0 waits for ever at action 4, receive-backward 0");
}

TEST_F(BrokenSchedule, WithAQueueTooSmallIsCaught) {
  schedule.stages[0].forward_capacity = 1;
  EXPECT_EQ(fault(), "the queue from stage 0 to 1 has room for 1 messages, needs 2");
  schedule.stages[0].forward_capacity = 2;
  schedule.stages[1].backward_capacity = 1;
  EXPECT_EQ(fault(), "the queue from stage 1 to 0 has room for 1 messages, needs 2");
}

TEST_F(BrokenSchedule, ThatAnnouncesTooLittleMemoryIsCaught) {
  schedule.stages[0].max_in_flight = 1;
  EXPECT_EQ(fault(), "stage 0 announces 1 microbatches in flight, holds 2");
}

TEST_F(BrokenSchedule, WithABackwardInEvaluationIsCaught) {
  schedule.has_backward = false;
  EXPECT_EQ(fault(), "stage 0, action 4: receive-backward 0 in a schedule without backwards");
}

TEST_F(BrokenSchedule, WithoutStagesOrMicrobatchesIsCaught) {
  schedule.microbatches = 0;
  EXPECT_EQ(fault(), "a schedule of 2 stages and 0 microbatches; needs at least one of each");
  schedule.stages.clear();
  EXPECT_EQ(fault(), "a schedule of 0 stages and 0 microbatches; needs at least one of each");
}

TEST(ScheduleDeathTest, AWarmupThatIncreasesIsRefused) {
  EXPECT_DEATH(make_1f1b(2, 4, {0, 1}), "deadlock: stage 0 waits for ever at action 2, receive-backward 0");
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
