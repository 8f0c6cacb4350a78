// The coordinator's core with made-up workers: how neighbours reach each other, workers leave, are kicked or blamed,
// and machines of different speed get their stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "simulated_run.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::has;
using test::SimulatedRun;
using test::small_rules;
using Way = control::Neighbour;

// Two workers, open or hidden, up to their first epoch.
class Pair : public SimulatedRun {
 public:
  Pair(bool first_behind_nat, bool second_behind_nat, RunRules rules = small_rules()) : SimulatedRun(std::move(rules)) {
    add("first").behind_nat = first_behind_nat;
    auto& second = add_unconnected("second");
    second.behind_nat = second_behind_nat;
    connect(second);
  }

  Way::Way lower_way() const { return forms().at(forms().size() - 2).next().way(); }
  Way::Way upper_way() const { return forms().back().previous().way(); }
};

TEST(Paths, OpenAndHiddenNeighbours_InEveryPair_HaveAPath) {
  struct Case {
    bool lower_hidden, upper_hidden;
    Way::Way lower, upper;
    const char* shown;
  };
  const Case cases[] = {{false, false, Way::DIAL, Way::AWAIT, "direct"},
                        {true, false, Way::DIAL, Way::AWAIT, "direct"},
                        {false, true, Way::AWAIT, Way::DIAL, "direct, dialled from above"},
                        {true, true, Way::TUNNEL_DIAL, Way::TUNNEL_AWAIT, "relayed"}};
  for (const auto& one : cases) {
    Pair cluster(one.lower_hidden, one.upper_hidden);
    ASSERT_EQ(cluster.forms().size(), 2u);
    EXPECT_EQ(cluster.lower_way(), one.lower);
    EXPECT_EQ(cluster.upper_way(), one.upper);
    EXPECT_EQ(cluster.status().links(0).way(), one.shown);
    cluster.pump();
    ASSERT_TRUE(cluster.finished());
    EXPECT_FALSE(cluster.finished()->failed);
  }
}

TEST(Paths, Choose_WithOneOfTwoProbesAnswered_WaitsForTheOther) {
  PathBook book;
  std::vector<PathProbe> probes;
  const TimePoint now{};
  EXPECT_FALSE(book.choose("lower", "upper", now, probes));
  EXPECT_EQ(probes.size(), 2u);
  book.answer("upper", "lower", "lower:1", {});
  EXPECT_FALSE(book.choose("lower", "upper", now, probes)) << "the answer from below may still come";
  book.answer("lower", "upper", "upper:1", {});
  EXPECT_EQ(book.choose("lower", "upper", now, probes)->way, PathWay::kForward);
  EXPECT_EQ(probes.size(), 2u) << "asked once";
}

TEST(Paths, UnansweredProbes_AfterTheTimeout_LinkIsRelayed) {
  SimulatedRun cluster(small_rules());
  cluster.add("first");
  auto& second = cluster.add_unconnected("second");
  cluster.worker("first").silent_to_probes = second.silent_to_probes = true;
  cluster.connect(second);
  EXPECT_TRUE(cluster.forms().empty());
  cluster.pass_time(PathBook::kPatience - milliseconds(1));
  EXPECT_TRUE(cluster.forms().empty());
  cluster.pass_time(milliseconds(1));
  ASSERT_EQ(cluster.forms().size(), 2u);
  EXPECT_EQ(cluster.forms()[0].next().way(), Way::TUNNEL_DIAL);
}

TEST(Paths, RelayedLink_DirectPathAppears_SwitchesBetweenSteps) {
  Pair cluster(true, true);
  cluster.run_to(1);
  cluster.worker(0).slow = cluster.worker(1).slow = true;
  cluster.pump();
  cluster.worker(1).behind_nat = false;  // somebody has opened a port
  const auto epoch = cluster.store.epoch;
  cluster.pass_time(PathBook::kTryAgain);
  EXPECT_EQ(cluster.store.epoch, epoch) << "the step under way is not disturbed";
  for (size_t i : {0, 1}) cluster.finish_step(cluster.worker(i));
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.store.epoch == epoch + 1; }));
  EXPECT_EQ(cluster.lower_way(), Way::DIAL);
  EXPECT_FALSE(cluster.forms().back().restore());
  EXPECT_EQ(cluster.store.rows.size(), 2u);
  for (size_t i : {0, 1}) cluster.worker(i).slow = false;
  cluster.pump();
  for (size_t i : {0, 1}) cluster.finish_step(cluster.worker(i));
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
}

TEST(Paths, RepeatedMeasurementsOfARelayedPath_WriteNoFurtherEvents) {
  Pair cluster(true, true);
  cluster.run_to(1);
  const auto before = cluster.events("path").size();
  control::FromWorker formed;
  formed.mutable_formed()->set_epoch(cluster.store.epoch);
  formed.mutable_formed()->mutable_next();
  for (int i = 0; i < 100; ++i) cluster.apply(cluster.core().message(*cluster.worker(0).session, formed, cluster.now));
  EXPECT_EQ(cluster.events("path").size(), before);
}

TEST(Paths, DirectPath_AfterItFails_IsProbedAgain) {
  Pair cluster(false, false);
  cluster.worker(0).forming_fails = true;
  cluster.worker(1).behind_nat = cluster.worker(0).behind_nat = true;
  cluster.pump();
  cluster.worker(0).forming_fails = false;
  cluster.pass_time(milliseconds(100));
  EXPECT_EQ(cluster.lower_way(), Way::TUNNEL_DIAL);
}

// Each microbatch computes for 10 ms. The round trip is 40 ms and a message takes 5 ms to send: 25 ms one way.
TEST(Paths, WarmUp_CoversTheMeasuredDelay) {
  for (const bool slow_line : {false, true}) {
    auto rules = small_rules();
    rules.config.pipeline.schedule = ScheduleKind::k1f1b;
    rules.config.train.microbatches = 16;
    rules.packet_bytes = 62'500;
    SimulatedRun cluster(rules);
    if (slow_line) {
      cluster.facts.set_round_trip_s(0.040);
      cluster.facts.set_up_bits_per_s(100e6);
      cluster.facts.set_down_bits_per_s(1e9);
    }
    cluster.compute_s = 0.010 * 16;
    cluster.add("first");
    cluster.add("second");
    cluster.run_to(3);
    std::vector<control::RunStep> steps;
    for (const auto& sent : cluster.all<SendTo>()) {
      if (sent.message.has_run_step()) steps.push_back(sent.message.run_step());
    }
    EXPECT_EQ(steps.front().warmup(0), 1) << "nothing is measured before the first step";
    EXPECT_EQ(steps.back().warmup(0), slow_line ? 1 + 5 : 1);
    EXPECT_EQ(steps.back().warmup(1), 0);
  }
}

TEST(Paths, MayTunnel_ExceptForNeighboursOfARelayedLink_IsRefused) {
  Pair relayed(true, true), direct(false, false);
  const auto epoch = relayed.store.epoch;
  EXPECT_TRUE(relayed.core().may_tunnel("first", 0, epoch, true).ok());
  EXPECT_TRUE(relayed.core().may_tunnel("second", 0, epoch, false).ok());
  const auto refused = [](const Status& status, const char* reason) { return has(status.error().message, reason); };
  EXPECT_TRUE(refused(relayed.core().may_tunnel("second", 0, epoch, true), "belongs to first, not to second"));
  EXPECT_TRUE(refused(relayed.core().may_tunnel("stranger", 0, epoch, false), "belongs to second"));
  EXPECT_TRUE(refused(relayed.core().may_tunnel("first", 0, epoch + 1, true), "the run is at epoch"));
  EXPECT_TRUE(refused(relayed.core().may_tunnel("first", 7, epoch, true), "no boundary 7"));
  EXPECT_TRUE(refused(relayed.core().may_tunnel("first", -1, epoch, true), "no boundary -1"));
  EXPECT_TRUE(refused(direct.core().may_tunnel("first", 0, direct.store.epoch, true), "is not relayed"));
}

// ---- leaving, kicks ----

TEST(PeerMeant, IsAWholeNameOrTheBeginningOfExactlyOne) {
  const std::set<std::string> names{"bob-1a2b3c", "bobby-9", "eve-1", "eve-2", "worker-1", "worker-10"};
  EXPECT_EQ(peer_meant("bob", names).take(), "bob-1a2b3c");
  EXPECT_EQ(peer_meant("bobb", names).take(), "bobby-9");
  EXPECT_EQ(peer_meant("worker-1", names).take(), "worker-1");
  EXPECT_EQ(peer_meant("eve", names).error().message, "eve may be eve-1 or eve-2: give the whole name");
  EXPECT_NE(peer_meant("mallory", names).error().message.find("there is nobody called mallory; there are bob-1a2b3c"),
            std::string::npos);
  EXPECT_FALSE(peer_meant("", names).ok());
}

TEST(Roster, LeavingWorker_StaysUntilACheckpointHoldsItsState) {
  Pair cluster(false, false);
  cluster.add("spare");
  cluster.run_to(2);
  control::FromWorker leave;
  leave.mutable_leave();
  cluster.say(cluster.worker("second"), leave);
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.worker("second").stopped; }));
  EXPECT_EQ(cluster.store.manifest_step, static_cast<int64_t>(cluster.store.rows.size()));
  const auto steps = cluster.store.rows.size();
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
  EXPECT_TRUE(cluster.events("rollback").empty());
  EXPECT_EQ(cluster.store.roster[1], "spare");
  EXPECT_EQ(cluster.worker("spare").steps_run, static_cast<int>(6 - steps)) << "no step was run twice";
}

TEST(Roster, LeavingWorker_WithoutAReplacement_RunWaits) {
  Pair cluster(false, false);
  cluster.run_to(2);
  control::FromWorker leave;
  leave.mutable_leave();
  cluster.say(cluster.worker("second"), leave);
  cluster.pump();
  EXPECT_TRUE(cluster.worker("second").stopped);
  EXPECT_FALSE(cluster.finished());
  EXPECT_EQ(cluster.status().phase(), "gathering");
  cluster.add("third");
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
}

TEST(Roster, LeaveRequest_AfterReconnecting_IsHonoured) {
  Pair cluster(false, false);
  cluster.run_to(2);
  auto& second = cluster.worker("second");
  cluster.disconnect(second);
  second.leaving = true;
  cluster.connect(second);
  cluster.pump();
  EXPECT_TRUE(second.stopped);
  EXPECT_EQ(cluster.status().phase(), "gathering");
  EXPECT_EQ(cluster.store.manifest_step, static_cast<int64_t>(cluster.store.rows.size()));
}

TEST(Roster, KickedWorker_AfterAnyRestart_IsStillRefused) {
  Pair cluster(false, false);
  cluster.run_to(1);
  cluster.apply(cluster.core().kick("second", cluster.now));
  EXPECT_TRUE(cluster.store.revoked.contains("second"));
  cluster.pump();
  EXPECT_TRUE(has(cluster.worker("second").refused, "removed from this run"));
  EXPECT_EQ(cluster.worker("first").told_revoked, test::Texts{"second"});
  EXPECT_EQ(cluster.status().phase(), "gathering");
  cluster.start_process(cluster.worker("second"));
  cluster.pump();
  EXPECT_TRUE(has(cluster.worker("second").refused, "removed from this run"));
  cluster.restart_coordinator();
  cluster.start_process(cluster.worker("second"));
  cluster.pump();
  EXPECT_TRUE(has(cluster.worker("second").refused, "removed from this run")) << "also after a restart";
}

TEST(Roster, PardonedWorker_TakesPartAgain_AlsoAfterARestart) {
  Pair cluster(false, false);
  cluster.run_to(1);
  cluster.apply(cluster.core().kick("second", cluster.now));
  cluster.pump();
  cluster.apply(cluster.core().pardon("second", cluster.now));
  EXPECT_FALSE(cluster.store.revoked.contains("second"));
  cluster.restart_coordinator();
  cluster.start_process(cluster.worker("second"));
  cluster.connect(cluster.worker("first"));
  cluster.run_to(2);
  EXPECT_EQ(cluster.store.rows.size(), 2U);
}

TEST(Roster, FatalTrouble_InAnOpenRun_RemovesOnlyThatWorker) {
  auto rules = small_rules();
  rules.open = true;
  Pair cluster(false, false, rules);
  cluster.run_to(1);
  cluster.worker("second").say_trouble("not enough memory", true);
  cluster.pump();
  EXPECT_FALSE(cluster.finished());
  EXPECT_TRUE(has(cluster.worker("second").refused, "not enough memory"));
  EXPECT_TRUE(has(cluster.events("refused").back(), "stage 1 (second): not enough memory"));
  cluster.add("third");
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
}

TEST(Roster, WorkerText_IsReducedToOneLineAndValidAddresses) {
  Pair cluster(false, false);
  cluster.run_to(1);
  cluster.worker("second").say_trouble("a line\n\x1b[2Jand another" + std::string(5000, 'x'));
  cluster.pump_until([&] { return cluster.status().phase() == "gathering"; });
  const auto event = cluster.events("aborted").back();
  EXPECT_TRUE(has(event, "a line  [2Jand another"));
  EXPECT_LE(event.size(), 1000u);
  auto hello = cluster.worker("first").core->connected();
  hello.mutable_hello()->clear_data_addresses();
  for (const char* address : {"nonsense", "10.0.0.1:7000", "10.0.0.1", "[::1]:70", "\n:1"}) {
    hello.mutable_hello()->add_data_addresses(address);
  }
  cluster.say(cluster.worker("first"), hello);
  EXPECT_TRUE(has(cluster.events("joined").back(), "from 10.0.0.1:7000"));
  EXPECT_EQ(cluster.status().members(0).address(), "10.0.0.1:7000");
}

// ---- blame ----

TEST(Roster, NamesTheStageThatSentNonFiniteNumbers) {
  auto rules = small_rules(3);
  SimulatedRun cluster(rules);
  for (const char* name : {"a", "b", "c"}) cluster.add(name);
  cluster.run_to(1);
  for (size_t i : {0, 1, 2}) cluster.worker(i).slow = true;
  cluster.pump();
  // b has sent NaN: c reports it, and it spoils all norms.
  for (size_t i : {0, 1, 2}) {
    auto& worker = cluster.worker(i);
    worker.squared_norm = std::numeric_limits<double>::quiet_NaN();
    cluster.finish_step(worker);
    auto* ready = worker.outbox.back().mutable_ready();
    ready->set_nonfinite_from_previous(i == 2);
    ready->set_nonfinite_from_next(i < 2);
  }
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.store.rows.size() == 2; }));
  EXPECT_FALSE(cluster.store.rows[1].apply);
  EXPECT_EQ(cluster.events("skipped").back(), "step 2: stage 1 (b) sent numbers that are not finite");
}

TEST(Roster, NamesTheStageWithNonFiniteGradients) {
  Pair cluster(false, false);
  cluster.run_to(1);
  for (size_t i : {0, 1}) cluster.worker(i).slow = true;
  cluster.pump();
  for (size_t i : {0, 1}) cluster.finish_step(cluster.worker(i));
  cluster.worker(0).outbox.back().mutable_ready()->set_squared_norm(std::numeric_limits<double>::infinity());
  cluster.worker(0).outbox.back().mutable_ready()->set_nonfinite_from_next(true);
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.store.rows.size() == 2; }));
  EXPECT_EQ(cluster.events("skipped").back(), "step 2: stage 1 (second) sent gradients that are not finite");
}

// ---- placement ----

// Four blocks that the machines divide.
RunRules auto_rules() {
  auto rules = small_rules();
  rules.config.model.blocks = 4;
  rules.config.pipeline.auto_cuts = true;
  return rules;
}

TEST(Placing, WaitsForAMachinePerStageAndDecidesOnce) {
  SimulatedRun cluster(auto_rules());
  for (const auto& [name, block_s] : {std::pair{"first", 3.0}, {"second", 1.0}}) {
    EXPECT_TRUE(cluster.forms().empty());
    auto& worker = cluster.add_unconnected(name);
    worker.block_s = block_s;
    cluster.connect(worker);
  }
  ASSERT_EQ(cluster.forms().size(), 2u);
  EXPECT_EQ(cluster.store.cuts, (std::vector<int64_t>{1, 3})) << "the faster machine takes more";
  EXPECT_EQ(cluster.store.roster, (test::Texts{"first", "second"}));
  EXPECT_EQ(cluster.forms()[0].cuts(1), 3);
  cluster.run_to(1);
  cluster.crash(cluster.worker("first"));
  cluster.start_process(cluster.worker("first"));  // a process of unknown speed
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_EQ(cluster.all<PersistCuts>().size(), 1u);
}

// A checkpoint holds the model's units, not stages: with any cuts, a stage restores exactly its own units.
TEST(Placing, Restore_WithAnyCuts_GivesEachStageItsUnits) {
  const auto rules = auto_rules();
  test::FakeStore stored;
  stored.epoch = stored.generation = 7;
  stored.manifest_step = 0;
  for (const auto& unit : model_units(rules.config.model, whole_model(rules.config.model))) {
    auto& file = stored.manifest_files.emplace_back();
    file.set_unit(unit);
    file.set_sha256("hash of " + unit);
  }
  CoordinatorCore core(rules, stored.read(), TimePoint{});
  std::map<int64_t, std::vector<std::string>> restored;
  for (const char* peer : {"one", "two"}) {
    control::FromWorker hello;
    hello.mutable_hello()->set_protocol(kControlProtocol);
    hello.mutable_hello()->set_peer(peer);
    hello.mutable_hello()->set_incarnation(peer);
    hello.mutable_hello()->mutable_machine()->set_block_s(peer[0] == 'o' ? 1 : 3);
    for (const auto& effect : core.message(peer[0], hello, TimePoint{})) {
      const auto* send = std::get_if<SendTo>(&effect);
      if (send == nullptr || !send->message.has_probe()) continue;
      control::FromWorker probed;
      probed.mutable_probed()->set_incarnation(send->message.probe().incarnation());
      for (const auto& answer : core.message(send->session, probed, TimePoint{})) {
        const auto* form = std::get_if<SendTo>(&answer);
        if (form == nullptr || !form->message.has_form()) continue;
        for (const auto& file : form->message.form().files()) {
          restored[form->message.form().seat().stage()].push_back(file.unit());
        }
      }
    }
  }
  EXPECT_EQ(restored[0], (std::vector<std::string>{"embedding", "block-000", "block-001", "block-002"}));
  EXPECT_EQ(restored[1], (std::vector<std::string>{"block-003", "head"}));
}

TEST(Placing, WithTooFewMachines_SaysWhyItWaits) {
  SimulatedRun cluster(auto_rules());
  cluster.add("first");
  auto& second = cluster.add_unconnected("second");
  second.memory_bytes = 1;
  cluster.connect(second);
  EXPECT_TRUE(cluster.forms().empty());
  EXPECT_TRUE(has(cluster.status().why(), "second has the least"));
  cluster.add("third");
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_EQ(cluster.store.roster, (test::Texts{"first", "third"}));
}

}  // namespace
}  // namespace thinpipe
