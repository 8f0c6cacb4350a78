// The coordinator's decisions when something fails: failed steps, lost streams, and their effect on evaluations and
// checkpoints; one fault at a time. Dying processes are in coordinator_deaths_test.cc.
#include <gtest/gtest.h>

#include <limits>

#include "fake_pair.h"

namespace thinpipe {
namespace {

using test::has;
using test::Pair;
using test::saving_rules;
using test::small_rules;
using test::Texts;
using ToWorker = control::ToWorker;
using std::chrono::milliseconds;

// ---- trouble ----

TEST(CoordinatorFaults, Trouble_AbortsTheStepAndRetriesAfterADelay) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.b().slow = true;
  cluster.pump();
  cluster.b().slow = false;
  const auto epoch = cluster.store.epoch;
  cluster.b().say_trouble("the link broke");
  cluster.pump();
  EXPECT_EQ(cluster.events("aborted").back(), "step 2: stage 1 (b): the link broke");
  EXPECT_EQ(cluster.store.epoch, epoch);  // not yet
  cluster.pass_time(milliseconds(99));
  EXPECT_EQ(cluster.store.epoch, epoch);
  cluster.pass_time(milliseconds(1));
  EXPECT_EQ(cluster.store.epoch, epoch + 1);
  for (const auto& form : cluster.last_forms()) EXPECT_FALSE(form.restore());
  cluster.pump();
  EXPECT_EQ(cluster.store.rows[1].epoch, epoch + 1);
  EXPECT_EQ(cluster.a().steps_run, 7);  // step 2 twice
}

TEST(CoordinatorFaults, WaitsLongerAfterEveryFailureAndStopsAfterTooMany) {
  auto rules = small_rules();
  rules.config.cluster.max_failures = 4;
  Pair cluster(rules);
  cluster.run_to(2);
  cluster.a().slow = cluster.b().slow = true;
  for (int failure = 0; failure < 3; ++failure) {
    cluster.pump();
    cluster.a().say_trouble("no answer");
    cluster.pump();
    EXPECT_FALSE(cluster.finished());
    const auto epoch = cluster.store.epoch;
    cluster.pass_time(milliseconds((100 << failure) - 1));
    EXPECT_EQ(cluster.store.epoch, epoch);
    cluster.pass_time(milliseconds(1));
    EXPECT_EQ(cluster.store.epoch, epoch + 1);
  }
  cluster.pump();
  cluster.a().say_trouble("no answer");
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_TRUE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "step 3 failed 4 times in a row, last at stage 0 (a): no answer");
}

TEST(CoordinatorFaults, Commit_ResetsTheFailureCount) {
  auto rules = small_rules();
  rules.config.cluster.max_failures = 2;
  Pair cluster(rules);
  for (int64_t step = 0; step < 4; ++step) {
    cluster.run_to(step);
    cluster.a().say_trouble("no answer");
    cluster.pump_until([&] { return cluster.status().phase() == "gathering"; });
    cluster.pass_time(milliseconds(100));
  }
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed) << cluster.finished()->reason;
}

TEST(CoordinatorFaults, Trouble_OfAnOlderEpoch_IsIgnored) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.disconnect(cluster.a());
  cluster.connect(cluster.a());
  const auto epoch = cluster.store.epoch;
  cluster.b().say_trouble("epoch 1 broke");  // it has not seen the new Form
  ASSERT_EQ(cluster.b().epoch, epoch - 1);
  cluster.pump();
  EXPECT_EQ(cluster.store.epoch, epoch);
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(CoordinatorFaults, TroubleOfAWorkerWithoutASeatIsIgnored) {
  Pair cluster(small_rules());
  auto& spare = cluster.add("spare");
  cluster.run_to(1);
  const auto epoch = cluster.store.epoch;
  spare.epoch = epoch;
  spare.say_trouble("I have a bad day");
  cluster.pump();
  EXPECT_TRUE(cluster.events("aborted").empty());
  EXPECT_EQ(cluster.store.epoch, epoch);
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(CoordinatorFaults, FatalTroubleStopsAtOnceAndNamesTheStage) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.b().say_trouble("out of memory", true);
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_TRUE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "stage 1 (b): out of memory");
}

TEST(CoordinatorFaults, FailedRestore_IsRequestedAgain) {
  Pair cluster(saving_rules());
  cluster.run_to(3);
  ASSERT_EQ(cluster.store.manifest_step, 2);
  cluster.crash(cluster.b());
  cluster.start_process(cluster.b()).forming_fails = true;
  cluster.pump();
  EXPECT_TRUE(has(cluster.events("aborted").back(), "cannot form"));
  cluster.b().forming_fails = false;
  cluster.pass_time(milliseconds(100));
  EXPECT_TRUE(cluster.last_forms()[1].restore());
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
}

TEST(CoordinatorFaults, FormOvertakenByTheNextEpoch_DoesNotCountAsDone) {
  Pair cluster(small_rules());
  // Both have the Form of epoch 1 in their inbox; a reconnects before b has read its Form.
  cluster.disconnect(cluster.a());
  cluster.connect(cluster.a());
  EXPECT_EQ(cluster.store.epoch, 2u);
  for (const auto& form : cluster.last_forms()) EXPECT_TRUE(form.restore());
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(CoordinatorFaults, RestoreOvertakenByTheNextEpoch_IsRequestedAgain) {
  Pair cluster(saving_rules());
  cluster.run_to(3);
  cluster.crash(cluster.b());
  cluster.start_process(cluster.b());  // both were asked to restore, and neither has done so yet
  cluster.disconnect(cluster.b());
  cluster.connect(cluster.b());
  for (const auto& form : cluster.last_forms()) EXPECT_TRUE(form.restore() && form.step() == 2);
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
}

// ---- streams that break ----

TEST(CoordinatorFaults, ReconnectedStream_ContinuesWithoutRestore) {
  Pair cluster(small_rules());
  cluster.run_to(2);
  cluster.a().slow = true;
  cluster.pump();
  cluster.disconnect(cluster.a());
  EXPECT_EQ(cluster.status().phase(), "gathering");
  cluster.a().slow = false;
  cluster.connect(cluster.a());
  for (const auto& form : cluster.last_forms()) EXPECT_FALSE(form.restore());
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_EQ(cluster.a().restores, 1);  // at the beginning
}

TEST(CoordinatorFaults, StepInDoubt_WithARow_IsCommittedBeforeTheNextEpochForms) {
  Pair cluster(small_rules());
  cluster.run_to(3);  // the commits of step 2 (from 0) are in flight
  ASSERT_EQ(cluster.a().holding()->ready_step(), 2);
  cluster.disconnect(cluster.a());
  cluster.history.clear();
  cluster.connect(cluster.a());
  auto sent = cluster.all<SendTo>();
  std::erase_if(sent, [](const SendTo& one) { return one.message.has_probe(); });
  ASSERT_GE(sent.size(), 3u);
  EXPECT_TRUE(sent[0].message.has_commit());
  EXPECT_EQ(sent[0].message.commit().step(), 2);
  EXPECT_TRUE(sent[1].message.has_form());
  for (const auto& form : cluster.last_forms()) EXPECT_FALSE(form.restore());
  EXPECT_EQ(cluster.events("in doubt"), Texts{"a: step 3 was committed"});
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_EQ(cluster.a().steps_run, 6);
}

TEST(CoordinatorFaults, ASkippedStepInDoubtIsSkippedAgain) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.b().loss_sum = std::numeric_limits<double>::quiet_NaN();
  cluster.run_to(2);
  cluster.disconnect(cluster.a());
  cluster.history.clear();
  cluster.connect(cluster.a());
  EXPECT_FALSE(cluster.all<SendTo>()[0].message.commit().apply());
}

TEST(CoordinatorFaults, StepInDoubt_WithoutARow_IsRunAgainInANewEpoch) {
  Pair cluster(small_rules());
  cluster.run_to(2);
  cluster.b().slow = true;
  cluster.pump();
  ASSERT_EQ(cluster.a().holding()->ready_step(), 2);
  cluster.disconnect(cluster.a());
  cluster.b().slow = false;
  const auto epoch = cluster.store.epoch;
  cluster.connect(cluster.a());
  EXPECT_TRUE(cluster.events("in doubt").empty());
  for (const auto& form : cluster.last_forms()) EXPECT_FALSE(form.restore());
  cluster.run_to(3);
  EXPECT_EQ(cluster.store.rows[2].epoch, epoch + 1);
  EXPECT_EQ(cluster.a().steps_run, 4);
}

TEST(CoordinatorFaults, ASecondStreamOfTheSameWorkerClosesTheFirst) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  const auto old = *cluster.a().session;
  cluster.connect(cluster.a());
  const auto closed = cluster.all<CloseSession>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].session, old);
  cluster.apply(cluster.core().session_ended(old, cluster.now));  // this changes nothing
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
}

// ---- evaluations and checkpoints through faults ----

TEST(CoordinatorFaults, Evaluation_AfterAnAbort_IsRerunUnlessAlreadyStored) {
  auto rules = small_rules();
  rules.config.train.eval_every = 2;
  rules.config.train.eval_sequences = 1;
  Pair cluster(rules);
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.status().phase() == "evaluating"; }));
  cluster.disconnect(cluster.a(), 1);
  cluster.connect(cluster.a());
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.store.evaluations.contains(2); }));
  EXPECT_EQ(cluster.sent(&ToWorker::has_evaluate), 4u);
  cluster.restart_coordinator();
  cluster.connect(cluster.a());
  cluster.connect(cluster.b());
  cluster.run_to(3);
  EXPECT_EQ(cluster.sent(&ToWorker::has_evaluate), 4u);
}

TEST(CoordinatorFaults, Rollback_ForgetsEvaluationsAfterTheCheckpoint) {
  auto rules = saving_rules();
  rules.config.train.eval_every = 2;
  rules.config.train.eval_sequences = 1;
  Pair cluster(rules);
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.store.manifest_step == 2; }));
  cluster.hold_uploads = true;
  cluster.run_to(5);
  EXPECT_TRUE(cluster.store.evaluations.contains(4));
  cluster.crash(cluster.a());
  cluster.start_process(cluster.a());
  EXPECT_EQ(cluster.store.evaluations.size(), 1u);
  cluster.hold_uploads = false;
  cluster.pump();
  EXPECT_EQ(cluster.store.evaluations.size(), 3u);
}

TEST(CoordinatorFaults, CheckpointFiles_FromBeforeARollback_AreIgnored) {
  Pair cluster(saving_rules());
  cluster.hold_uploads = true;
  cluster.run_to(3);
  ASSERT_EQ(cluster.uploads.size(), 2u);
  const auto late = cluster.uploads;
  cluster.uploads.clear();
  cluster.crash(cluster.a());
  cluster.start_process(cluster.a());
  cluster.run_to(3);
  for (const auto& upload : late) {
    for (const auto& file : upload.files) cluster.apply(cluster.core().file_arrived(file, cluster.now));
  }
  EXPECT_TRUE(cluster.all<WriteManifest>().empty());
  cluster.hold_uploads = false;
  cluster.pump();
  EXPECT_EQ(cluster.store.manifest_step, 6);
}

TEST(CoordinatorFaults, SaveLostWithItsStream_IsRequestedAgain) {
  Pair cluster(saving_rules());
  cluster.run_to(2);  // Commit, Save and RunStep are in the inboxes
  cluster.disconnect(cluster.a());
  cluster.connect(cluster.a());
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_EQ(cluster.all<WriteManifest>().front().files.front().step(), 2);
  EXPECT_EQ(cluster.store.manifest_step, 6);
}

}  // namespace
}  // namespace thinpipe
