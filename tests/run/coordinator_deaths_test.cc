// The coordinator's decisions after a worker or a coordinator dies; one fault at a time.
#include <gtest/gtest.h>

#include <limits>

#include "fake_pair.h"

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::has;
using test::Pair;
using test::saving_rules;
using test::SimulatedRun;
using test::small_rules;
using test::Texts;

// ---- processes that die ----

TEST(CoordinatorFaults, WorkerRestarted_AllReturnToTheCheckpoint) {
  Pair cluster(saving_rules());
  cluster.add("spare");
  cluster.run_to(3);
  ASSERT_EQ(cluster.store.manifest_step, 2);
  cluster.crash(cluster.b());
  cluster.start_process(cluster.b());
  EXPECT_EQ(cluster.events("replaced").size(), 1u);
  EXPECT_EQ(cluster.store.roster, (Texts{"a", "b"}));  // it keeps its place, though the spare has waited longer
  const auto persisted = cluster.all<PersistEpoch>().back();
  EXPECT_EQ(persisted.drop_from, 2);
  EXPECT_EQ(persisted.generation, persisted.epoch);
  EXPECT_EQ(cluster.store.rows.size(), 2u);
  for (size_t stage = 0; stage < 2; ++stage) {
    const auto form = cluster.last_forms()[stage];
    EXPECT_TRUE(form.restore());
    EXPECT_EQ(form.step(), 2);
    EXPECT_EQ(form.files(0).sha256(), cluster.store.manifest_files[2 * stage].sha256());  // two units each
  }
  EXPECT_EQ(cluster.events("rollback"),
            Texts{"1 of 2 stages lost their state: all return from step 3 to the checkpoint of step 2"});
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_EQ(cluster.store.rows.size(), 6u);
}

TEST(CoordinatorFaults, WorkerRestarted_WithoutACheckpoint_AllReturnToTheInitialWeights) {
  Pair cluster(small_rules());
  cluster.run_to(3);
  cluster.crash(cluster.a());
  cluster.start_process(cluster.a());
  EXPECT_EQ(cluster.all<PersistEpoch>().back().drop_from, 0);
  for (const auto& form : cluster.last_forms())
    EXPECT_TRUE(form.restore() && form.files_size() == 0 && form.step() == 0);
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(CoordinatorFaults, WorkerRestarted_CheckpointIsCurrent_OnlyItRestores) {
  Pair cluster(saving_rules());
  cluster.run_to(2);
  cluster.a().slow = cluster.b().slow = true;
  cluster.pump();
  ASSERT_EQ(cluster.store.manifest_step, 2);
  const auto generation = cluster.store.generation;
  cluster.crash(cluster.b());
  cluster.start_process(cluster.b());
  EXPECT_EQ(cluster.all<PersistEpoch>().back().drop_from, -1);
  EXPECT_EQ(cluster.store.generation, generation);
  EXPECT_FALSE(cluster.last_forms()[0].restore());
  EXPECT_TRUE(cluster.last_forms()[1].restore());
  EXPECT_EQ(cluster.last_forms()[1].files(0).step(), 2);
  EXPECT_TRUE(cluster.events("rollback").empty());
}

TEST(CoordinatorFaults, SkippedStepsInARowAreCountedAcrossARollbackAndARestart) {
  auto rules = saving_rules();
  rules.config.cluster.max_skipped = 4;
  for (const bool restarts : {false, true}) {
    Pair cluster(rules);
    cluster.b().loss_sum = std::numeric_limits<double>::quiet_NaN();
    cluster.run_to(3);
    cluster.crash(cluster.a());
    cluster.start_process(cluster.a());
    EXPECT_EQ(cluster.core().committed(), 2);
    cluster.run_to(3);
    EXPECT_FALSE(cluster.finished());  // step 3 counts once
    if (restarts) {
      cluster.restart_coordinator();
      cluster.connect(cluster.a());
      cluster.connect(cluster.b());
    }
    cluster.pump();
    ASSERT_TRUE(cluster.finished());
    EXPECT_EQ(cluster.core().committed(), 4);
    EXPECT_TRUE(has(cluster.finished()->reason, "4 steps in a row"));
  }
}

TEST(CoordinatorFaults, AnExpiredLeaseGivesTheStageToASpare) {
  Pair cluster(saving_rules());
  cluster.add("spare");
  cluster.run_to(3);
  cluster.crash(cluster.b());
  cluster.pass_time(seconds(10));
  EXPECT_EQ(cluster.status().phase(), "gathering");  // it may still come back
  cluster.pass_time(milliseconds(1));
  EXPECT_EQ(cluster.events("assigned").back(), "spare takes stage 1: nobody has it");
  EXPECT_TRUE(has(cluster.events("aborted").back(), "stage 1 (b) was silent for 10 s"));
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_EQ(cluster.store.roster, (Texts{"a", "spare"}));
}

TEST(CoordinatorFaults, SilentWorker_StillConnected_LosesItsStageToo) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  const auto session = *cluster.b().session;
  cluster.pass_time(seconds(6), false);
  control::FromWorker beat;
  beat.mutable_heartbeat();
  cluster.say(cluster.a(), beat);
  cluster.pass_time(seconds(5), false);
  ASSERT_EQ(cluster.all<CloseSession>().size(), 1u);
  EXPECT_EQ(cluster.all<CloseSession>()[0].session, session);
  EXPECT_EQ(cluster.status().members_size(), 1);
}

TEST(CoordinatorFaults, ASlowStepWithHeartbeatsIsNotADeath) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.b().slow = true;
  cluster.pump();
  const auto epoch = cluster.store.epoch;
  for (int i = 0; i < 100; ++i) cluster.pass_time(seconds(9));
  cluster.b().slow = false;
  cluster.finish_step(cluster.b());
  cluster.pump();
  EXPECT_EQ(cluster.store.epoch, epoch);
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(CoordinatorFaults, ASpareMayComeAndGo) {
  Pair cluster(small_rules());
  auto& spare = cluster.add("spare");
  cluster.run_to(2);
  const auto epoch = cluster.store.epoch;
  cluster.disconnect(spare);
  cluster.pump();
  EXPECT_EQ(cluster.store.epoch, epoch);
  EXPECT_EQ(cluster.core().committed(), 6);
}

// ---- coordinator restarts ----

TEST(CoordinatorFaults, RestartedCoordinator_WaitsForTheOldHolders_ThenContinues) {
  Pair cluster(small_rules());
  cluster.run_to(3);
  cluster.pump_until([&] { return cluster.b().history.size() == 3 && cluster.a().history.size() == 3; });
  cluster.restart_coordinator();
  cluster.add("spare");
  cluster.connect(cluster.b());
  EXPECT_EQ(cluster.status().phase(), "gathering");
  cluster.pass_time(seconds(5));
  EXPECT_EQ(cluster.status().phase(), "gathering");
  cluster.connect(cluster.a());
  ASSERT_EQ(cluster.status().phase(), "forming");
  for (const auto& form : cluster.last_forms()) EXPECT_FALSE(form.restore());
  EXPECT_EQ(cluster.store.roster, (Texts{"a", "b"}));
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_EQ(cluster.a().restores + cluster.b().restores, 2);
}

TEST(CoordinatorFaults, ARestartBetweenTheRowAndTheCommitLosesNothing) {
  Pair cluster(small_rules());
  cluster.run_to(2);
  cluster.a().slow = cluster.b().slow = true;
  cluster.pump();
  cluster.a().slow = cluster.b().slow = false;
  cluster.finish_step(cluster.a());
  cluster.deliver_from(cluster.a());
  cluster.finish_step(cluster.b());
  const auto report = cluster.b().outbox.front();
  // The row is written; the process dies before it sends the commit.
  cluster.apply(cluster.core().message(*cluster.b().session, report, cluster.now), 1);
  ASSERT_EQ(cluster.store.rows.size(), 3u);
  cluster.restart_coordinator();
  cluster.connect(cluster.a());
  cluster.connect(cluster.b());
  EXPECT_EQ(cluster.events("in doubt").size(), 2u);
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_EQ(cluster.a().steps_run, 6);
}

TEST(CoordinatorFaults, ARestartInsideARollbackFinishesIt) {
  Pair cluster(saving_rules());
  cluster.run_to(3);
  cluster.crash(cluster.b());
  auto& b = cluster.b();
  cluster.dies_after_next_epoch = true;
  cluster.start_process(b);
  ASSERT_EQ(cluster.store.rows.size(), 2u) << "dropped, and nobody told";
  cluster.restart_coordinator();
  cluster.connect(cluster.a());
  cluster.connect(b);
  for (const auto& form : cluster.last_forms())
    EXPECT_TRUE(form.restore() && form.step() == 2 && form.files_size() == 2);
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
}

}  // namespace
}  // namespace thinpipe
