// A run that strangers have joined: whatever one of them does, the run goes on without it.
#include <gtest/gtest.h>

#include <limits>

#include "fake_pair.h"
#include "run/core/blame.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::has;
using test::Pair;
using test::saving_rules;
using test::SimulatedWorker;
using test::Texts;

RunRules open_rules() {
  auto rules = saving_rules();
  rules.open = true;
  rules.config.cluster.max_failures = 3;
  rules.config.cluster.max_skipped = 100;
  rules.config.train.steps = 60;
  return rules;
}

// Stages 0 and 1 are held by a and b; c and d wait.
struct OpenRun : Pair {
  explicit OpenRun(const RunRules& rules = open_rules()) : Pair(rules) {
    add("c");
    add("d");
    run_to(2);
  }
  // Lets the run go on, with time for retries.
  void go_on() {
    for (int i = 0; i < 100 && !finished(); ++i) {
      pump();
      pass_time(milliseconds(200));
    }
  }
  void expect_done() {
    go_on();
    ASSERT_TRUE(finished()) << last_event();
    EXPECT_FALSE(finished()->failed) << finished()->reason;
    EXPECT_EQ(core().committed(), 60);
  }
  bool was_sent_away(const SimulatedWorker& worker) const {
    return worker.refused.find("may come back in") != std::string::npos;
  }
};

// Reports trouble in every epoch until it has lost its place.
void make_trouble(OpenRun& run, SimulatedWorker& worker) {
  for (int i = 0; i < 20 && worker.session; ++i) {
    worker.slow = true;
    run.pump();
    worker.say_trouble("I have a bad day");
    run.pump();
    run.pass_time(seconds(6));
  }
}

TEST(OpenRun, HolderThatReportsTroubleAgainAndAgain_IsSentAwayAndTheRunGoesOn) {
  OpenRun run;
  make_trouble(run, run.b());
  EXPECT_TRUE(run.was_sent_away(run.b())) << run.b().refused;
  EXPECT_TRUE(has(run.b().refused, "too much trouble, last: stage 1 (b): I have a bad day; may come back in 60 s"));
  run.expect_done();
  EXPECT_FALSE(run.was_sent_away(run.a()));
}

TEST(OpenRun, NeighbourThatBreaksEveryLink_IsSentAwayToo) {
  OpenRun run;
  for (int i = 0; i < 20 && run.b().session; ++i) {
    run.a().slow = true;
    run.pump();
    control::FromWorker message;
    message.mutable_trouble()->set_epoch(run.a().epoch);
    message.mutable_trouble()->set_reason("the link broke");
    message.mutable_trouble()->set_from_next(true);
    run.a().outbox.push_back(message);
    run.pump();
    run.pass_time(seconds(6));
  }
  EXPECT_TRUE(run.was_sent_away(run.b())) << run.last_event();
  run.a().slow = false;
  run.expect_done();
}

TEST(OpenRun, WhoeverWasSentAway_IsRefusedUntilItsTimeIsOver) {
  OpenRun run;
  make_trouble(run, run.b());
  ASSERT_TRUE(run.was_sent_away(run.b()));
  run.start_process(run.b());
  run.pump();
  EXPECT_TRUE(has(run.b().refused, "was sent away; may come back in")) << run.b().refused;
  run.pass_time(seconds(61));
  run.start_process(run.b());
  run.pump();
  EXPECT_EQ(run.b().refused, "");
  run.expect_done();
}

TEST(OpenRun, HolderThatReconnectsAllTheTime_IsSentAway) {
  OpenRun run;
  for (int i = 0; i < 20 && run.b().refused.empty(); ++i) {
    run.disconnect(run.b());
    run.connect(run.b());
    run.pump_until([&] { return run.status().phase() == "running"; });
  }
  run.pump();
  EXPECT_TRUE(run.was_sent_away(run.b())) << run.last_event();
  run.expect_done();
}

TEST(OpenRun, HolderThatFloods_IsSentAwayAndTheRunGoesOn) {
  OpenRun run;
  run.flood(run.b());
  run.pump();
  EXPECT_TRUE(run.was_sent_away(run.b())) << run.last_event();
  EXPECT_FALSE(run.was_sent_away(run.a()));
  run.expect_done();
}

TEST(OpenRun, NumbersThatAreNotFinite_CostTheirSenderItsPlace) {
  OpenRun run;
  run.b().loss_sum = std::numeric_limits<double>::quiet_NaN();
  run.go_on();
  EXPECT_TRUE(run.was_sent_away(run.b())) << run.last_event();
  EXPECT_FALSE(run.was_sent_away(run.a()));
  run.expect_done();
}

TEST(OpenRun, TooManySkippedSteps_PauseTheRunInsteadOfEndingIt) {
  auto rules = open_rules();
  rules.config.cluster.max_skipped = 2;
  OpenRun run(rules);
  run.b().loss_sum = std::numeric_limits<double>::quiet_NaN();
  run.go_on();
  EXPECT_FALSE(run.finished());
  EXPECT_EQ(run.status().phase(), "paused");
  EXPECT_TRUE(has(run.events("paused").back(), "lower optim.lr")) << run.events("paused").back();
  run.b().loss_sum = 2;
  run.tell(control::ControlRequest::RESUME);
  run.expect_done();
}

TEST(OpenRun, NeighboursThatDisagreeOnTheBasis_AreSentAwayAndTheStepIsRepeated) {
  OpenRun run;
  run.a().basis_hash = "one";
  run.b().basis_hash = "another";
  run.pump();
  EXPECT_TRUE(run.was_sent_away(run.a()) && run.was_sent_away(run.b()));
  run.expect_done();
}

// a says that it sent something else than b received, or the other way round. One of the two lies.
TEST(OpenRun, NeighboursThatDisagreeOnWhatCrossedTheirCut_AreSuspectsAndTheStepDoesNotCount) {
  for (const bool down : {true, false}) {
    OpenRun run;
    (down ? run.a().sent_to_next : run.b().sent_to_previous) = "one";
    (down ? run.b().received_from_previous : run.a().received_from_next) = "another";
    const auto committed = run.core().committed();
    run.go_on();
    EXPECT_TRUE(run.was_sent_away(run.a()) && run.was_sent_away(run.b())) << run.last_event();
    EXPECT_TRUE(has(run.events("aborted").at(0), "stage 0 (a) and stage 1 (b) do not agree on what crossed the cut"));
    EXPECT_GE(run.core().committed(), committed);
    run.expect_done();
  }
}

TEST(OpenRun, NeighboursThatAgreeOnWhatCrossedTheirCut_GoOn) {
  OpenRun run;
  run.a().sent_to_next = run.b().received_from_previous = "forward";
  run.b().sent_to_previous = run.a().received_from_next = "backward";
  run.expect_done();
  EXPECT_TRUE(run.events("aborted").empty());
}

TEST(OpenRun, FloodOfHellosThatAreRefused_IsSentAwayToo) {
  OpenRun run;
  auto hello = OpenRun::hello_of("flood", "x");
  hello.mutable_hello()->set_protocol(1);
  for (SessionId session = 1000; session < 1100; ++session) run.apply(run.core().message(session, hello, run.now));
  EXPECT_TRUE(has(run.events("refused").back(), "was sent away")) << run.events("refused").back();
}

TEST(OpenRun, StreamOfMessagesWithoutAPause_CostsItsSenderItsPlaceAndTheRunGoesOn) {
  OpenRun run;
  run.apply(run.core().flooded(*run.b().session, run.b().peer, run.now));
  run.pump_until([&] { return !run.b().refused.empty(); });
  EXPECT_TRUE(has(run.b().refused, "sends messages without a pause; may come back in 60 s")) << run.b().refused;
  run.expect_done();
}

TEST(OpenRun, ImpossibleReport_CostsItsSenderItsPlaceAndDoesNotCount) {
  for (const double norm : {-1e300, -1.0}) {
    OpenRun run;
    run.b().squared_norm = norm;
    run.pump();
    EXPECT_TRUE(has(run.b().refused, "reported a squared norm of")) << run.b().refused;
    run.expect_done();
    for (const auto& row : run.store.rows) EXPECT_GE(row.squared_norm, 0);
  }
}

TEST(OpenRun, HelloFlood_OfASpare_IsRefusedAndTheRunGoesOn) {
  OpenRun run;
  auto& flood = run.add_unconnected("flood");
  for (int i = 0; i < 100; ++i) run.connect(flood);
  run.pump();
  EXPECT_TRUE(run.was_sent_away(flood)) << run.last_event();
  run.expect_done();
}

TEST(Blame, FaultsWearOffWithCommittedSteps) {
  Blame blame;
  for (int fault = 0; fault < 50; ++fault) {
    EXPECT_TRUE(count_fault(blame, {"a"}, 2).empty()) << fault;
    for (int step = 0; step < Blame::kStepsPerFault; ++step) wear_off(blame);
  }
  EXPECT_TRUE(count_fault(blame, {"a", "b"}, 2).empty());
  EXPECT_EQ(count_fault(blame, {"a", "b"}, 2), (Texts{"a", "b"}));
}

TEST(Blame, TimeAwayDoublesUpToAnHour) {
  Blame blame;
  TimePoint now{};
  for (const int minutes : {1, 2, 4, 8, 16, 32, 60, 60, 60}) {
    EXPECT_EQ(send_away(blame, "a", now), std::chrono::minutes(minutes));
    EXPECT_EQ(time_away(blame, "a", now), Duration(std::chrono::minutes(minutes)));
    EXPECT_FALSE(time_away(blame, "b", now));
    now += std::chrono::minutes(minutes);
    EXPECT_FALSE(time_away(blame, "a", now));
  }
}

TEST(Blame, Disagreeing_NamesBothEndsOfEveryDifference) {
  EXPECT_TRUE(disagreeing({}).empty());
  EXPECT_TRUE(disagreeing({"x", "x", "x"}).empty());
  EXPECT_EQ(disagreeing({"x", "x", "y", "y"}), (std::vector<size_t>{1, 2}));
  EXPECT_EQ(disagreeing({"x", "y", "x", "x"}), (std::vector<size_t>{0, 1, 2}));
}

}  // namespace
}  // namespace thinpipe
