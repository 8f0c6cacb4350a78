// The coordinator's decisions without faults: who gets which stage, when a step is committed, skipped, evaluated or
// saved, and how a run ends.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fake_pair.h"
#include "optim/optimizer.h"

namespace thinpipe {
namespace {

using test::has;
using test::Pair;
using test::SimulatedRun;
using test::SimulatedWorker;
using test::small_rules;
using test::Texts;
using ToWorker = control::ToWorker;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Coordinator, WaitsForAWorkerPerStageAndExplainsTheSeats) {
  SimulatedRun cluster(small_rules());
  cluster.add("first");
  cluster.pump();
  EXPECT_EQ(cluster.status().phase(), "gathering");
  EXPECT_EQ(cluster.sent(&ToWorker::has_form), 0u);
  cluster.add("second");
  cluster.add("third");
  EXPECT_EQ(cluster.events("assigned"),
            (Texts{"first takes stage 0: nobody has it", "second takes stage 1: nobody has it"}));
  ASSERT_EQ(cluster.forms().size(), 2u);
  const auto form = cluster.forms()[0];
  EXPECT_EQ(form.next().address(), "second:1");
  EXPECT_EQ(form.next().way(), control::Neighbour::DIAL);
  EXPECT_EQ(cluster.forms()[1].previous().way(), control::Neighbour::AWAIT);
  EXPECT_TRUE(form.restore() && form.files_size() == 0);  // the initial weights
  EXPECT_EQ(cluster.store.roster, (Texts{"first", "second"}));
}

TEST(Coordinator, FreeStage_GoesToTheWorkerThatHoldsItsState) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.disconnect(cluster.b());
  cluster.pass_time(std::chrono::seconds(11));
  ASSERT_TRUE(has(cluster.last_event(), "was silent"));
  cluster.connect(cluster.b());
  EXPECT_EQ(cluster.events("assigned").back(), "b takes stage 1: it holds its state");
  cluster.pump();
  EXPECT_EQ(cluster.b().restores, 1);  // at the beginning
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(Coordinator, ClaimToHoldAState_CountsOnlyFromItsLastHolder) {
  Pair cluster(small_rules());
  cluster.run_to(2);
  const auto claim = *cluster.b().holding();
  cluster.crash(cluster.b());
  cluster.pass_time(std::chrono::seconds(11));
  cluster.add("stranger");
  auto hello = SimulatedRun::hello_of("stranger", "another process");
  hello.mutable_hello()->add_data_addresses("stranger:1");
  *hello.mutable_hello()->mutable_holding() = claim;
  cluster.say(cluster.worker("stranger"), hello);
  for (const auto& form : cluster.last_forms()) EXPECT_TRUE(form.restore());  // as the state of stage 1 is lost
}

TEST(Coordinator, ReturningHolder_GetsItsStageBackFromAWorkerWithoutItsState) {
  Pair cluster(small_rules());
  auto& spare = cluster.add("spare");
  cluster.run_to(3);
  cluster.disconnect(cluster.a());
  cluster.disconnect(cluster.b());
  cluster.pass_time(std::chrono::seconds(11));
  ASSERT_EQ(cluster.events("assigned").back(), "spare takes stage 0: nobody has it");
  cluster.connect(cluster.a());  // stage 1 has nobody yet, so the spare has not begun
  EXPECT_EQ(cluster.events("assigned").back(), "a takes stage 0: it holds its state");
  cluster.connect(cluster.b());
  cluster.pump();
  EXPECT_TRUE(cluster.events("rollback").empty());
  EXPECT_EQ(cluster.a().restores, 1);
  EXPECT_EQ(spare.restores, 0);
  EXPECT_EQ(cluster.core().committed(), 6);
}

// Both holders lose their places, a spare takes one of them, and then the coordinator stands still.
void stand_still_without_holders(Pair& cluster) {
  cluster.add("spare");
  cluster.run_to(3);
  cluster.disconnect(cluster.a());
  cluster.disconnect(cluster.b());
  cluster.pass_time(std::chrono::seconds(11));
  ASSERT_EQ(cluster.events("assigned").back(), "spare takes stage 0: nobody has it");
  cluster.jump_time(std::chrono::minutes(5));
}

TEST(Coordinator, ThatStoodStill_WaitsForThoseWhoHaveTheState) {
  Pair cluster(small_rules());
  stand_still_without_holders(cluster);
  cluster.connect(cluster.b());  // every stage has somebody now
  cluster.connect(cluster.a());
  cluster.pump();
  EXPECT_TRUE(cluster.events("rollback").empty());
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(Coordinator, ThatStoodStill_ReturnsToACheckpointIfNobodyComes) {
  Pair cluster(small_rules());
  stand_still_without_holders(cluster);
  cluster.connect(cluster.b());
  cluster.pump();
  EXPECT_TRUE(cluster.events("rollback").empty());
  cluster.pass_time(std::chrono::seconds(11));
  cluster.pump();
  EXPECT_EQ(cluster.events("rollback").size(), 1U);
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(Coordinator, FrozenLongerThanTheLease_EvictsNobody) {
  Pair cluster(small_rules());
  cluster.add("spare");
  cluster.run_to(2);
  cluster.pass_time(std::chrono::milliseconds(100));
  cluster.jump_time(std::chrono::minutes(5));
  EXPECT_TRUE(has(cluster.events("late").back(), "stood still for 300.0 s"));
  cluster.pump();
  EXPECT_EQ(cluster.events("assigned").size(), 2u);
  EXPECT_TRUE(cluster.events("rollback").empty());
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(Coordinator, Hello_OfAnotherProtocol_IsRefusedWithAdvice) {
  SimulatedRun cluster(small_rules());
  auto hello = SimulatedRun::hello_of("old", "1");
  hello.mutable_hello()->set_protocol(kControlProtocol + 1);
  cluster.apply(cluster.core().message(7, hello, cluster.now));
  const auto sent = cluster.all<SendTo>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(has(sent[0].message.refuse().reason(), "install the same version"));
  EXPECT_EQ(cluster.status().members_size(), 0);
}

TEST(Coordinator, RefusesAWorkerWithoutAName) {
  SimulatedRun cluster(small_rules());
  for (const auto& [peer, incarnation] :
       {std::pair<std::string, std::string>{"", "1"}, {"a", ""}, {std::string(201, 'x'), "1"}}) {
    cluster.apply(cluster.core().message(7, SimulatedRun::hello_of(peer, incarnation), cluster.now));
    EXPECT_TRUE(cluster.all<SendTo>().back().message.has_refuse());
  }
  EXPECT_EQ(cluster.sent(&ToWorker::has_refuse), 3u);
}

TEST(Coordinator, CommitsOnlyWhenAllAreReadyAndWritesTheRowFirst) {
  Pair cluster(small_rules());
  cluster.worker("b").slow = true;
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 0);
  EXPECT_EQ(cluster.sent(&ToWorker::has_commit), 0u);
  cluster.history.clear();
  cluster.finish_step(cluster.worker("b"));
  cluster.run_to(1);
  ASSERT_GE(cluster.history.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<PersistCommit>(cluster.history[0]));
  EXPECT_TRUE(std::get<SendTo>(cluster.history[1]).message.has_commit());
  EXPECT_TRUE(std::get<SendTo>(cluster.history[2]).message.has_commit());
}

TEST(Coordinator, AddsNormsInStageOrderAndClips) {
  auto rules = small_rules(3);
  rules.config.optim.clip = 0.5;
  const double norms[] = {1e16, 1.0, 1.0};  // any other order would keep the ones
  for (const bool backwards : {false, true}) {
    SimulatedRun cluster(rules);
    for (int i = 0; i < 3; ++i) {
      auto& worker = cluster.add(fmt::format("w{}", i));
      worker.squared_norm = norms[i];
      worker.loss_sum = i;
      worker.slow = true;
    }
    cluster.pump();
    for (int i = 0; i < 3; ++i) {
      auto& worker = cluster.worker(static_cast<size_t>(backwards ? 2 - i : i));
      cluster.finish_step(worker);
      cluster.deliver_from(worker);
    }
    ASSERT_EQ(cluster.store.rows.size(), 1u);
    const auto& row = cluster.store.rows[0];
    EXPECT_EQ(row.squared_norm, (1e16 + 1.0) + 1.0);
    EXPECT_NE(row.squared_norm, (1.0 + 1.0) + 1e16);
    EXPECT_EQ(row.loss, 3.0 / 4);  // tokens_per_step
    EXPECT_EQ(row.grad_factor, clip_factor(row.squared_norm, 0.5));
    EXPECT_LT(row.grad_factor, 1);
    EXPECT_TRUE(has(row.metrics, "{\"step\":1,\"loss\":0.75,"));
    EXPECT_TRUE(has(row.timing, "{\"step\":1,\"seconds\":0.0,"));
  }
}

TEST(Coordinator, IgnoresReportsOfOtherEpochsAndStepsAndRepeatedOnes) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  auto& a = cluster.worker("a");
  a.slow = cluster.worker("b").slow = true;
  cluster.pump();
  const auto epoch = cluster.store.epoch;
  for (const auto& [of_epoch, step] : {std::pair<uint64_t, int64_t>{epoch, 0}, {epoch, 2}, {epoch - 1, 1}, {9, 1}}) {
    cluster.say(a, a.ready(of_epoch, step));
    cluster.say(cluster.worker("b"), cluster.worker("b").ready(of_epoch, step));
  }
  EXPECT_EQ(cluster.core().committed(), 1);
  a.squared_norm = 3;
  for (int i = 0; i < 3; ++i) cluster.say(a, a.ready(epoch, 1));
  EXPECT_EQ(cluster.core().committed(), 1);
  cluster.say(cluster.worker("b"), cluster.worker("b").ready(epoch, 1));
  EXPECT_EQ(cluster.core().committed(), 2);
  EXPECT_EQ(cluster.store.rows[1].squared_norm, 4);
  cluster.say(a, a.ready(epoch, 1));  // once more, too late
  EXPECT_EQ(cluster.core().committed(), 2);
}

TEST(Coordinator, AStrangersMessagesChangeNothing) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.history.clear();
  cluster.apply(cluster.core().message(99, cluster.worker("a").ready(cluster.store.epoch, 1), cluster.now));
  cluster.apply(cluster.core().session_ended(99, cluster.now));
  EXPECT_TRUE(cluster.history.empty());
}

TEST(Coordinator, SkipsAStepWhoseLossOrNormIsNotFinite) {
  for (const auto& [loss, norm] : {std::pair{kNan, 1.0}, {1.0, kNan}, {1.0, kInfinity}, {-kInfinity, 1.0}}) {
    Pair cluster(small_rules());
    cluster.worker("b").loss_sum = loss;
    cluster.worker("a").squared_norm = norm;
    cluster.run_to(1);
    EXPECT_FALSE(cluster.store.rows[0].apply);
    EXPECT_EQ(cluster.store.rows[0].grad_factor, 0);
    EXPECT_EQ(cluster.events("skipped").size(), 1u);
    cluster.worker("b").loss_sum = cluster.worker("a").squared_norm = 1;
    cluster.run_to(6);  // continues
    EXPECT_TRUE(cluster.store.rows[3].apply);
  }
}

TEST(Coordinator, StopsWhenTooManyStepsInARowWereSkipped) {
  auto rules = small_rules();
  rules.config.cluster.max_skipped = 3;
  Pair cluster(rules);
  cluster.worker("b").loss_sum = kNan;
  cluster.run_to(2);
  cluster.worker("b").loss_sum = 1;
  cluster.run_to(3);
  cluster.worker("b").loss_sum = kNan;
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_TRUE(cluster.finished()->failed);
  EXPECT_TRUE(has(cluster.finished()->reason, "for 3 steps in a row up to step 6"));
  EXPECT_EQ(cluster.core().committed(), 6);  // 2 skipped, 1 good, 3 skipped
}

TEST(Coordinator, CountsOnlyAppliedBasisMoves) {
  Pair cluster(small_rules());
  cluster.worker("a").basis_hash = cluster.worker("b").basis_hash = "moved";
  cluster.run_to(1);
  EXPECT_EQ(cluster.store.rows[0].basis_version, 1);
  cluster.worker("a").loss_sum = kNan;
  cluster.run_to(2);
  EXPECT_EQ(cluster.store.rows[1].basis_version, 1);
}

TEST(Coordinator, FailsWhenStagesDisagreeOnTheNextBasis) {
  Pair cluster(small_rules());
  cluster.worker("a").basis_hash = "one";
  cluster.worker("b").basis_hash = "other";
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_TRUE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "the stages disagree on the next basis");
  EXPECT_TRUE(cluster.store.rows.empty());
}

TEST(Coordinator, EvaluatesWhenDueAndAtTheEndOverTheWholeSplit) {
  auto rules = small_rules();
  rules.config.train.eval_every = 2;
  rules.config.train.eval_sequences = 1;
  Pair cluster(rules);
  cluster.worker("b").evaluation_sum = 12;
  cluster.worker("a").evaluation_sum = 99;  // not the last stage's
  cluster.pump();
  const auto evaluations = cluster.all<PersistEvaluation>();
  ASSERT_EQ(evaluations.size(), 3u);
  EXPECT_EQ(evaluations[0].step, 2);
  EXPECT_EQ(evaluations[1].step, 4);
  EXPECT_EQ(evaluations[0].loss, 12.0 / (1 * 2));
  EXPECT_FALSE(evaluations[1].is_final);
  EXPECT_EQ(evaluations[2].step, 6);
  EXPECT_TRUE(evaluations[2].is_final);
  EXPECT_EQ(evaluations[2].loss, 12.0 / (2 * 2));
}

TEST(Coordinator, TellsHowFarTheLastStageIsWithAnEvaluation) {
  Pair cluster(small_rules());
  ASSERT_TRUE(cluster.pump_until([&] { return cluster.status().phase() == "evaluating"; }));
  const auto beat = [&](const char* name, int64_t windows) {
    control::FromWorker message;
    message.mutable_heartbeat()->set_windows_done(windows);
    cluster.say(cluster.worker(name), message);
    return cluster.status().windows_done();
  };
  EXPECT_EQ(cluster.status().windows(), 2);
  EXPECT_EQ(cluster.status().windows_done(), 0);
  EXPECT_EQ(beat("b", 1), 1);
  EXPECT_EQ(beat("a", 2), 1);  // not the last stage
  EXPECT_EQ(beat("b", 1'000'000), 2);
  EXPECT_EQ(beat("b", -5), 0);
  cluster.pump();
  EXPECT_EQ(cluster.status().windows(), 0);
}

TEST(Coordinator, EndsWithAFinalEvaluationACheckpointAndAFarewell) {
  Pair cluster(small_rules());
  cluster.hold_uploads = true;
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 6);
  EXPECT_TRUE(cluster.store.final_loss);
  EXPECT_FALSE(cluster.finished());  // the last checkpoint is not there yet
  EXPECT_EQ(cluster.sent(&ToWorker::has_save), 2u);
  cluster.hold_uploads = false;
  cluster.pump();
  EXPECT_EQ(cluster.store.manifest_step, 6);
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "all 6 steps are done");
  EXPECT_TRUE(cluster.worker("a").stopped && cluster.worker("b").stopped);
  EXPECT_TRUE(cluster.core().done());
}

TEST(Coordinator, Checkpoints_WhenDue_AreSavedWhileTheNextStepsRun) {
  auto rules = small_rules();
  rules.config.checkpoint.every = 2;
  Pair cluster(rules);
  cluster.hold_uploads = true;
  cluster.run_to(4);
  EXPECT_EQ(cluster.store.manifest_step, -1);
  ASSERT_EQ(cluster.uploads.size(), 2u);
  EXPECT_EQ(cluster.uploads[0].files[0].step(), 2);
  cluster.deliver_upload();
  EXPECT_TRUE(cluster.all<WriteManifest>().empty());  // one stage's file is not enough
  cluster.deliver_upload();
  EXPECT_EQ(cluster.store.manifest_step, 2);
  cluster.hold_uploads = false;
  cluster.pump();
  EXPECT_EQ(cluster.store.manifest_step, 6);
  ASSERT_TRUE(cluster.finished());
}

TEST(Coordinator, IgnoresFilesOfAnotherStepOrGeneration) {
  auto rules = small_rules();
  rules.config.checkpoint.every = 2;
  Pair cluster(rules);
  cluster.hold_uploads = true;
  cluster.run_to(3);
  ASSERT_EQ(cluster.uploads.size(), 2u);
  for (auto stray : cluster.uploads[1].files) {
    stray.set_generation(stray.generation() + 1);
    cluster.apply(cluster.core().file_arrived(stray, cluster.now));
    stray.set_generation(stray.generation() - 1);
    stray.set_step(1);
    cluster.apply(cluster.core().file_arrived(stray, cluster.now));
  }
  cluster.deliver_upload();
  EXPECT_TRUE(cluster.all<WriteManifest>().empty());
  cluster.deliver_upload();
  EXPECT_EQ(cluster.all<WriteManifest>().size(), 1u);
}

TEST(Coordinator, WantsEachFileOfTheCheckpointUnderWayOnce) {
  auto rules = small_rules();
  rules.config.checkpoint.every = 2;
  Pair cluster(rules);
  cluster.hold_uploads = true;
  cluster.run_to(3);
  ASSERT_EQ(cluster.uploads.size(), 2u);
  auto file = cluster.uploads[0].files.front();
  EXPECT_TRUE(cluster.core().wants(file));
  auto other = file;
  other.set_step(file.step() + 1);
  EXPECT_FALSE(cluster.core().wants(other));
  other = file;
  other.set_generation(file.generation() + 1);
  EXPECT_FALSE(cluster.core().wants(other));
  cluster.apply(cluster.core().file_arrived(file, cluster.now));
  EXPECT_FALSE(cluster.core().wants(file));
}

TEST(Coordinator, BadCheckpointFile_CostsItsSenderTheSeatInAnOpenRun_AndEndsARunOfOneOwner) {
  for (const bool open : {true, false}) {
    auto rules = small_rules();
    rules.open = open;
    Pair cluster(rules);
    cluster.run_to(2);
    cluster.apply(cluster.core().file_refused("b", "block-001: has no tensor 'x'", cluster.now));
    EXPECT_EQ(cluster.finished().has_value(), !open);
    EXPECT_EQ(cluster.core().seat_of("b").has_value(), !open);
    if (open) {
      EXPECT_EQ(cluster.events("aborted").back(),
                "step 3: stage 1 (b) lost its place: uploaded a checkpoint file that cannot be used: block-001: has no "
                "tensor 'x'; may come back in 60 s");
    } else {
      EXPECT_EQ(cluster.finished()->reason,
                "stage 1 (b) uploaded a checkpoint file that cannot be used: block-001: has no tensor 'x'");
    }
    cluster.apply(cluster.core().file_refused("nobody", "x", cluster.now));  // it may have left meanwhile
  }
}

TEST(Coordinator, StopsWithTheReasonWhenACheckpointCannotBeWritten) {
  auto rules = small_rules();
  rules.config.checkpoint.every = 2;
  Pair cluster(rules);
  cluster.manifest_fails = true;
  cluster.pump();
  ASSERT_TRUE(cluster.finished());
  EXPECT_TRUE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "the checkpoint could not be written: the disk is full");
}

TEST(Coordinator, StopRequest_SavesFirst) {
  Pair cluster(small_rules());
  cluster.run_to(2);
  cluster.tell(control::ControlRequest::STOP);
  EXPECT_FALSE(cluster.finished());
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 3);  // the step under way is not lost
  EXPECT_EQ(cluster.store.manifest_step, 3);
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "stopped after step 3; the checkpoint is written");
}

// Whether every Stop that was sent says that the run may go on later; nullopt if none was sent, or they differ.
std::optional<bool> said_resumable(const SimulatedRun& cluster) {
  std::optional<bool> said;
  for (const auto& effect : cluster.all<SendTo>()) {
    if (!effect.message.has_stop()) continue;
    if (said && *said != effect.message.stop().resumable()) return std::nullopt;
    said = effect.message.stop().resumable();
  }
  return said;
}

TEST(Coordinator, StopRequest_TellsTheMembersOfAnOpenRunThatItMayGoOn) {
  for (const bool open : {true, false}) {
    auto rules = small_rules();
    rules.open = open;
    Pair cluster(rules);
    cluster.run_to(2);
    cluster.tell(control::ControlRequest::STOP);
    cluster.pump();
    ASSERT_TRUE(cluster.finished());
    EXPECT_EQ(said_resumable(cluster), open);
    // Also one that comes after that.
    cluster.connect(cluster.worker("b"));
    cluster.pump();
    EXPECT_EQ(said_resumable(cluster), open);
  }
}

TEST(Coordinator, EndOfAnOpenRun_IsFinal) {
  auto rules = small_rules();
  rules.open = true;
  Pair complete(rules), failed(rules);
  complete.pump();
  ASSERT_TRUE(complete.finished());
  EXPECT_EQ(said_resumable(complete), false);
  failed.run_to(1);
  failed.tell(control::ControlRequest::STOP);
  failed.apply(failed.core().fail("the disk is full"));
  failed.pump();
  ASSERT_TRUE(failed.finished());
  EXPECT_EQ(said_resumable(failed), false);
}

TEST(Coordinator, StopRequest_WithoutWorkers_EndsAtOnce) {
  SimulatedRun cluster(small_rules());
  cluster.tell(control::ControlRequest::STOP);
  ASSERT_TRUE(cluster.finished());
  EXPECT_FALSE(cluster.finished()->failed);
  EXPECT_TRUE(has(cluster.finished()->reason, "the last checkpoint is of step 0"));
}

TEST(Coordinator, Pause_TakesEffectBetweenStepsAndSurvivesARestart) {
  Pair cluster(small_rules());
  cluster.run_to(2);
  cluster.tell(control::ControlRequest::PAUSE);
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 3);
  EXPECT_EQ(cluster.status().phase(), "paused");
  cluster.restart_coordinator();
  cluster.connect(cluster.worker("a"));
  cluster.connect(cluster.worker("b"));
  cluster.pump();
  EXPECT_EQ(cluster.core().committed(), 3);  // a restart does not wake it
  EXPECT_TRUE(cluster.status().paused());
  cluster.tell(control::ControlRequest::RESUME);
  cluster.pump();
  EXPECT_FALSE(cluster.store.paused);
  EXPECT_EQ(cluster.core().committed(), 6);
}

TEST(Coordinator, ServiceFailure_EndsTheRun) {
  Pair cluster(small_rules());
  cluster.run_to(1);
  cluster.apply(cluster.core().fail("run.sqlite: disk I/O error"));
  ASSERT_TRUE(cluster.finished());
  EXPECT_TRUE(cluster.finished()->failed);
  EXPECT_EQ(cluster.finished()->reason, "run.sqlite: disk I/O error");
  cluster.pump();
  EXPECT_TRUE(cluster.worker("a").stopped);
  EXPECT_EQ(cluster.core().committed(), 1);
  EXPECT_EQ(cluster.all<Finish>().size(), 1u);
}

}  // namespace
}  // namespace thinpipe
