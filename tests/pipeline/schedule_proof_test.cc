// The proof of the schedules' peaks, checked against simulations that know nothing of it: all interleavings where they
// can be counted, random and adverse ones where not; and the faults it finds in schedules that were broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "pipeline/schedule.h"
#include "schedules.h"

namespace thinpipe {
namespace {

using test::all_kinds;
using test::b;
using test::f;
using test::rb;
using test::rf;
using test::sb;
using test::sf;
using Kind = ActionKind;

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

}  // namespace
}  // namespace thinpipe
