// The decisions of the coordinator's parts, one by one: each returns what to do and why.
#include <gtest/gtest.h>

#include "simulated_run.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::has;
using test::small_rules;

// After two of six steps, with the checkpoint of step 2.
struct Idle {
  Idle() { steps.committed = saving.manifest_step = 2; }
  NextMove next() const { return decide_next(steps, saving, wishes, rules); }

  RunRules rules = small_rules();
  Steps steps;
  Saving saving;
  Wishes wishes;
};

TEST(DecideNext, WithNothingElseToDo_RunsTheNextStep) {
  const auto next = Idle().next();
  EXPECT_EQ(next.move, Move::kRunStep);
  EXPECT_FALSE(next.save);
  EXPECT_EQ(next.why, "running step 3");
}

TEST(DecideNext, WithACheckpointDue_AsksForItAndRunsOn) {
  Idle idle;
  idle.saving.due = true;
  EXPECT_TRUE(idle.next().save);
  EXPECT_EQ(idle.next().move, Move::kRunStep);
  idle.saving.step = 1;  // one is under way
  EXPECT_FALSE(idle.next().save);
}

TEST(DecideNext, WhenAStopOrALeaveNeedsTheCheckpointOfThisStep_Waits) {
  for (const bool stop : {true, false}) {
    Idle idle;
    (stop ? idle.wishes.stop : idle.wishes.leave) = true;
    idle.saving.manifest_step = 1;
    EXPECT_EQ(idle.next().move, Move::kWait);
    EXPECT_TRUE(idle.next().save);
    EXPECT_EQ(idle.next().why, "waiting for the checkpoint of step 2");
    idle.saving.manifest_step = 2;
    EXPECT_EQ(idle.next().move, stop ? Move::kFinish : Move::kRegroup);
  }
}

TEST(DecideNext, WithAnEvaluationDue_EvaluatesUnlessAStopIsAskedFor) {
  Idle idle;
  idle.rules.config.train.eval_every = 2;
  EXPECT_EQ(idle.next().move, Move::kEvaluate);
  idle.wishes.stop = true;
  EXPECT_EQ(idle.next().move, Move::kFinish);
  idle.wishes.stop = false;
  idle.steps.evaluations.insert(2);
  EXPECT_EQ(idle.next().move, Move::kRunStep);
}

TEST(DecideNext, WhenPaused_WaitsButStillRegroups) {
  Idle idle;
  idle.wishes.pause = true;
  EXPECT_EQ(idle.next().move, Move::kWait);
  EXPECT_EQ(idle.next().why, "paused after step 2");
  idle.wishes.regroup = "a relay is not needed";
  EXPECT_EQ(idle.next().move, Move::kRegroup);
  EXPECT_EQ(idle.next().why, "a relay is not needed");
}

TEST(DecideBeginning, LostState_RollsAllBackUnlessTheCheckpointIsCurrent) {
  Saving saving;
  EXPECT_FALSE(decide_beginning(saving, 5, 0, 3).all_restore);
  const auto fresh = decide_beginning(saving, 5, 1, 3);
  EXPECT_TRUE(fresh.all_restore);
  EXPECT_EQ(fresh.step, 0);
  EXPECT_EQ(fresh.why, "1 of 3 stages lost their state: all return from step 5 to the initial weights");
  saving.manifest_step = 4;
  EXPECT_EQ(decide_beginning(saving, 5, 2, 3).step, 4);
  EXPECT_TRUE(has(decide_beginning(saving, 5, 2, 3).why, "from step 5 to the checkpoint of step 4"));
  saving.manifest_step = 5;
  EXPECT_FALSE(decide_beginning(saving, 5, 2, 3).all_restore);
}

TEST(CountFailure, AfterEachTrouble_WaitsTwiceAsLongUpToALimit) {
  auto rules = small_rules();
  rules.config.cluster.max_failures = 9;
  Steps steps;
  const TimePoint now{seconds(1000)};
  for (const int wait_ms : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    EXPECT_FALSE(count_failure(steps, rules, "stage 0 (a): no answer", now));
    EXPECT_EQ(*steps.retry_at - now, milliseconds(wait_ms));
  }
  EXPECT_EQ(count_failure(steps, rules, "stage 0 (a): no answer", now),
            "step 1 failed 9 times in a row, last at stage 0 (a): no answer");
}

TEST(DecideSeats, PrefersHeldStateThenArrivalOrder_SkipsTooSmallMachines) {
  Roster roster;
  const auto rules = small_rules(3);
  const auto join = [&](const char* peer, int64_t held_stage, uint64_t memory_bytes) {
    control::Hello hello;
    hello.set_peer(peer);
    hello.set_incarnation(peer);
    hello.mutable_machine()->set_memory_bytes(memory_bytes);
    if (held_stage >= 0) *hello.mutable_holding() = holding_of({}, rules, {.stage = held_stage});
    admit(roster, roster.members[peer], roster.arrivals, hello, rules, {});
  };
  join("small", -1, 1);
  join("first", -1, 0);
  join("second", -1, 0);
  join("holder", 0, 0);
  const auto seating = decide_seats(roster, rules);
  ASSERT_EQ(seating.given.size(), 3u);
  EXPECT_EQ(seating.given[0].peer, "holder");
  EXPECT_EQ(seating.given[0].why, "stage 0: it holds its state");
  EXPECT_EQ(seating.given[1].peer, "first");
  EXPECT_EQ(seating.given[1].seat, Seat{.stage = 1});
  EXPECT_EQ(seating.given[2].peer, "second");
  EXPECT_TRUE(has(seating.why, "small waits: stage 1 is free but needs"));
}

}  // namespace
}  // namespace thinpipe
