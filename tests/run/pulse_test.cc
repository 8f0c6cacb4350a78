// Who is silent and who is stuck: the rules alone, with times that the test chooses, and then in a simulated run.
#include "run/core/pulse.h"

#include <gtest/gtest.h>

#include "fake_pair.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using test::has;
using test::Pair;
using test::saving_rules;
using test::SimulatedWorker;

constexpr Duration kLease = seconds(15);

Pulse steady(Duration gap) {
  Pulse pulse;
  for (int i = 0; i < 100; ++i) note_gap(pulse, gap);
  return pulse;
}

control::Heartbeat beat(uint64_t done, control::Heartbeat::Wait waits = control::Heartbeat::NOTHING) {
  control::Heartbeat heartbeat;
  heartbeat.set_done(done);
  heartbeat.set_waits(waits);
  return heartbeat;
}

TEST(Patience, OnAQuickLine_IsBelowTwoSeconds) {
  EXPECT_LT(patience_with(steady(milliseconds(505)), kLease), seconds(2));
  EXPECT_GE(patience_with(steady(milliseconds(5)), kLease), milliseconds(1500));
}

TEST(Patience, OnASlowLine_IsThreeTimesItsLongestGapAndAtMostTheLease) {
  EXPECT_EQ(patience_with(steady(seconds(3)), kLease), seconds(9));
  EXPECT_EQ(patience_with(steady(seconds(8)), kLease), kLease);
}

TEST(Patience, IsTheLeaseUntilTheLineIsKnown) {
  Pulse pulse;
  for (int i = 0; i < 7; ++i) note_gap(pulse, milliseconds(500));
  EXPECT_EQ(patience_with(pulse, kLease), kLease);
  note_gap(pulse, milliseconds(500));
  EXPECT_LT(patience_with(pulse, kLease), kLease);
}

TEST(Patience, OneLongGap_IsRememberedForAMinuteAndThenForgotten) {
  auto pulse = steady(milliseconds(500));
  note_gap(pulse, seconds(4));
  for (int i = 0; i < 120; ++i) note_gap(pulse, milliseconds(500));
  EXPECT_GT(patience_with(pulse, kLease), seconds(6));
  for (int i = 0; i < 1000; ++i) note_gap(pulse, milliseconds(500));
  EXPECT_LT(patience_with(pulse, kLease), seconds(2));
}

TEST(Deadlines, FollowTheMedianOfTheSteps) {
  const std::deque<double> steps{0.1, 0.1, 20};
  EXPECT_EQ(deadlines_of(Duty::kStepping, steps).notice, milliseconds(1500));
  EXPECT_EQ(deadlines_of(Duty::kStepping, steps).act, seconds(15));
  EXPECT_EQ(deadlines_of(Duty::kStepping, {5, 5, 5}).act, seconds(200));
  EXPECT_EQ(deadlines_of(Duty::kForming, steps).act, minutes(2));
  EXPECT_EQ(deadlines_of(Duty::kStepping, {}).act, minutes(10));
  EXPECT_EQ(deadlines_of(Duty::kEvaluating, steps, 7).most, 7 * deadlines_of(Duty::kStepping, steps).most);
}

// Stages 0 to n-1, each with its last heartbeat. None has moved since `began`.
struct Crew {
  explicit Crew(const std::vector<control::Heartbeat>& beats) : pulses(beats.size()) {
    for (size_t i = 0; i < beats.size(); ++i) {
      pulses[i].last = beats[i];
      duties.push_back({&pulses[i], false});
    }
  }
  std::vector<size_t> suspects(Duration after) const {
    const auto stall = find_stall(duties, TimePoint{}, deadlines_of(Duty::kStepping, {1, 1, 1}), TimePoint{} + after);
    return stall ? stall->suspects : std::vector<size_t>{};
  }
  std::vector<Pulse> pulses;
  std::vector<OnDuty> duties;
};

using Stages = std::vector<size_t>;
constexpr auto kPrevious = control::Heartbeat::PREVIOUS, kNext = control::Heartbeat::NEXT;

TEST(Stall, NamesTheStageThatComputesForEverAndNotThoseThatWaitForIt) {
  const Crew crew({beat(3, kNext), beat(3, kNext), beat(3), beat(2, kPrevious)});
  EXPECT_EQ(crew.suspects(seconds(39)), Stages{});
  EXPECT_EQ(crew.suspects(seconds(41)), Stages{2});
}

TEST(Stall, WhenTwoNeighboursWaitForEachOther_NamesBoth) {
  const Crew crew({beat(3, kNext), beat(3, kNext), beat(3, kPrevious), beat(2, kPrevious)});
  EXPECT_EQ(crew.suspects(seconds(41)), (Stages{1, 2}));
}

TEST(Stall, WhenAStageWaitsForOneThatHasFinished_NamesBoth) {
  Crew crew({beat(9), beat(3, kPrevious)});
  crew.duties[0].finished = true;
  EXPECT_EQ(crew.suspects(seconds(41)), (Stages{0, 1}));
}

TEST(Stall, ImpossibleWait_NamesItsAuthor) {
  EXPECT_EQ(Crew({beat(1, kPrevious), beat(1, kPrevious)}).suspects(seconds(41)), Stages{0});
  EXPECT_EQ(Crew({beat(1, kNext), beat(1, kNext)}).suspects(seconds(41)), Stages{1});
}

TEST(Stall, ProgressCountsUntilTheDutyHasLastedFarTooLong) {
  Crew crew({beat(1), beat(1, kPrevious)});
  for (int i = 2; i < 12; ++i) {
    const auto now = TimePoint{} + i * seconds(30);
    note_heartbeat(crew.pulses[0], beat(static_cast<uint64_t>(i)), now);
    EXPECT_EQ(crew.suspects(i * seconds(30) + seconds(1)), Stages{}) << i;
  }
  note_heartbeat(crew.pulses[0], beat(99), TimePoint{} + seconds(401));
  EXPECT_EQ(crew.suspects(seconds(402)), Stages{0});
}

// ---- in a run ----

RunRules open_rules() {
  auto rules = saving_rules();
  rules.open = true;
  rules.config.train.steps = 60;
  rules.config.cluster.lease_s = 60;
  return rules;
}

// Stages 0 and 1 are held by a and b; c waits.
struct WatchedRun : Pair {
  explicit WatchedRun(const RunRules& rules = open_rules()) : Pair(rules) {
    add("c");
    b().slow = true;  // it computes until the test lets it go on
    for (int i = 0; i < 5; ++i) {
      pump();
      pass_time(seconds(1));
      finish_step(b());
    }
    pump();
  }
  // Time passes for everybody but one worker, which is silent.
  void silence(const SimulatedWorker& silent, Duration time) {
    for (Duration past{}; past < time; past += milliseconds(500)) {
      now += milliseconds(500);
      control::FromWorker message;
      message.mutable_heartbeat();
      for (const auto* worker : {&a(), &b(), &this->worker("c")}) {
        if (worker != &silent && worker->session) say(*worker, message);
      }
      apply(core().tick(now));
    }
  }
  void beat_quickly(int times) {
    const SimulatedWorker nobody;
    silence(nobody, times * milliseconds(500));
  }
};

TEST(WatchedRun, FrozenHolderOnAQuickLine_IsNoticedInTwoSecondsAndKeepsItsSeatForTheLease) {
  WatchedRun run;
  run.tell(control::ControlRequest::PAUSE);
  run.finish_step(run.b());
  run.pump();
  run.beat_quickly(1000);
  run.silence(run.a(), seconds(2));
  ASSERT_EQ(run.events("silent").size(), 1U);
  EXPECT_TRUE(has(run.events("silent").back(), "stage 0 (a) has been silent for"));
  EXPECT_EQ(run.status().phase(), "gathering");
  run.connect(run.a());  // it lives: nothing is lost
  run.tell(control::ControlRequest::RESUME);
  run.b().slow = false;
  run.pump();
  EXPECT_EQ(run.core().committed(), 60);
  EXPECT_TRUE(run.events("rollback").empty());
  EXPECT_EQ(run.a().restores, 1);
}

TEST(WatchedRun, HolderOnASlowLine_IsGivenTime) {
  WatchedRun run;
  control::FromWorker message;
  message.mutable_heartbeat();
  run.a().slow = run.b().slow = false;
  run.pump();
  for (int i = 0; i < 12; ++i) {
    run.silence(run.a(), seconds(2));
    run.say(run.a(), message);
  }
  run.silence(run.a(), seconds(5));
  EXPECT_TRUE(run.events("silent").empty());
  run.silence(run.a(), seconds(5));
  EXPECT_EQ(run.events("silent").size(), 1U);
}

TEST(WatchedRun, HolderThatHangsWhileItsHeartbeatsGoOn_IsNoticedThenReplaced) {
  WatchedRun run;
  ASSERT_TRUE(run.b().computes());
  run.b().hangs = true;
  run.pass_time(seconds(10));
  ASSERT_EQ(run.events("stuck").size(), 1U);
  EXPECT_TRUE(has(run.events("stuck").back(), "stage 1 (b) has made no progress for"));
  EXPECT_EQ(run.status().phase(), "running");
  for (int i = 0; i < 60 && run.b().refused.empty(); ++i) {
    run.pass_time(seconds(1));
    run.pump();
  }
  EXPECT_TRUE(has(run.b().refused, "no progress with its step for")) << run.last_event();
  run.a().slow = false;
  run.pump();
  for (int i = 0; i < 100 && !run.finished(); ++i) run.pass_time(milliseconds(200)), run.pump();
  ASSERT_TRUE(run.finished()) << run.last_event();
  EXPECT_FALSE(run.finished()->failed);
}

TEST(WatchedRun, SlowStepWithProgress_IsLeftAlone) {
  WatchedRun run;
  for (uint64_t i = 1; i < 200; ++i) {
    control::FromWorker message;
    *message.mutable_heartbeat() = beat(i);
    run.now += seconds(1);
    run.say(run.b(), message);
    *message.mutable_heartbeat() = beat(0, control::Heartbeat::NEXT);
    run.say(run.a(), message);
    run.apply(run.core().tick(run.now));
  }
  EXPECT_EQ(run.b().refused, "");
  EXPECT_TRUE(run.events("stuck").empty());
}

// The steps go on meanwhile.
TEST(WatchedRun, HolderThatNeverSendsItsCheckpoint_LosesItsPlace) {
  WatchedRun run;
  run.hold_uploads = true;
  for (int i = 0; i < 200 && run.b().refused.empty(); ++i) {
    std::erase_if(run.uploads, [](const auto& upload) { return upload.stage == 1; });
    while (run.deliver_upload()) continue;
    run.finish_step(run.b());
    run.pump();
    run.pass_time(seconds(1));
    run.pump();
  }
  EXPECT_TRUE(has(run.b().refused, "no progress with its checkpoint for")) << run.last_event();
}

TEST(WatchedRun, OfOneOwner_HangIsReportedAndEndsTheRunInTheEnd) {
  auto rules = open_rules();
  rules.open = false;
  rules.config.cluster.max_failures = 2;
  WatchedRun run(rules);
  run.b().stubborn = run.b().hangs = true;
  for (int i = 0; i < 3000 && !run.finished(); ++i) run.pass_time(seconds(1)), run.pump();
  ASSERT_TRUE(run.finished());
  EXPECT_TRUE(has(run.finished()->reason, "no progress with")) << run.finished()->reason;
}

TEST(WatchedRun, CoordinatorThatStoodStill_AccusesNobody) {
  WatchedRun run;
  run.jump_time(minutes(5), /*heartbeats=*/false);
  EXPECT_TRUE(run.events("stuck").empty());
  EXPECT_TRUE(run.events("silent").empty());
  EXPECT_TRUE(run.b().computes());
  EXPECT_EQ(run.status().phase(), "running");
}

}  // namespace
}  // namespace thinpipe
