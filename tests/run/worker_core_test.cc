// A worker's decisions, message by message, without a process, a socket or a clock.
#include "run/core/worker_core.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace thinpipe {
namespace {

control::Form form_of(uint64_t epoch, bool restore = true, int64_t step = 0) {
  control::Form form;
  form.set_epoch(epoch);
  form.set_generation(1);
  form.mutable_seat()->set_stage(1);
  form.mutable_previous()->set_peer("before");
  form.set_restore(restore);
  form.set_step(step);
  form.add_cuts(2);
  form.add_cuts(1);
  form.set_config_sha256("config");
  return form;
}

control::ToWorker to_worker(const control::Form& form) {
  control::ToWorker message;
  *message.mutable_form() = form;
  return message;
}
control::ToWorker run_step(uint64_t epoch, int64_t step) {
  control::ToWorker message;
  message.mutable_run_step()->set_epoch(epoch);
  message.mutable_run_step()->set_step(step);
  return message;
}
control::ToWorker commit(uint64_t epoch, int64_t step) {
  control::ToWorker message;
  message.mutable_commit()->set_epoch(epoch);
  message.mutable_commit()->set_step(step);
  message.mutable_commit()->set_apply(true);
  return message;
}
control::ToWorker evaluate(uint64_t epoch, int64_t step) {
  control::ToWorker message;
  message.mutable_evaluate()->set_epoch(epoch);
  message.mutable_evaluate()->set_step(step);
  return message;
}
control::ToWorker save(int64_t step) {
  control::ToWorker message;
  message.mutable_save()->set_step(step);
  return message;
}
control::ToWorker stop(const std::string& reason) {
  control::ToWorker message;
  message.mutable_stop()->set_reason(reason);
  return message;
}

template <class T>
std::optional<T> find(const WorkerEffects& effects) {
  for (const auto& effect : effects) {
    if (const auto* one = std::get_if<T>(&effect)) return *one;
  }
  return std::nullopt;
}
template <class T>
std::optional<T> work_in(const WorkerEffects& effects) {
  const auto work = find<Work>(effects);
  return work && std::holds_alternative<T>(*work) ? std::optional(std::get<T>(*work)) : std::nullopt;
}
std::string trouble_in(const WorkerEffects& effects) {
  const auto said = find<Say>(effects);
  return said && said->message.has_trouble() ? said->message.trouble().reason() : "";
}

// A worker of stage 1 of 2, in a model of three blocks.
struct WorkerDecides : testing::Test {
  WorkerDecides() : core(facts(), TimePoint{}) {}

  static WorkerFacts facts() {
    WorkerFacts known;
    known.run = "a run";
    known.coordinator = "host:1";
    known.config_sha256 = "config";
    known.stages = 2;
    known.blocks = 3;
    known.peer = "me";
    known.incarnation = "process 1";
    return known;
  }
  // Holds its stage in epoch 1, nothing to do.
  void take_seat(uint64_t epoch = 1) {
    ASSERT_TRUE(work_in<TakeSeat>(core.message(to_worker(form_of(epoch)))));
    ASSERT_TRUE(find<Say>(core.done(control::Formed()))->message.has_formed());
  }
  // Has sent Ready for step 0.
  void be_in_doubt() {
    take_seat();
    ASSERT_TRUE(work_in<ComputeStep>(core.message(run_step(1, 0))));
    ASSERT_TRUE(find<Say>(core.done(control::Ready()))->message.has_ready());
  }
  control::Hello hello() { return core.connected().hello(); }

  WorkerCore core;
};

TEST_F(WorkerDecides, Hello_OfAFreshProcess_HoldsNothing) {
  EXPECT_EQ(hello().peer(), "me");
  EXPECT_FALSE(hello().has_holding());
}

TEST_F(WorkerDecides, InDoubt_CoordinatorLostThenCommit_AppliesTheStepOnce) {
  be_in_doubt();
  EXPECT_TRUE(core.disconnected(TimePoint{}).empty());
  EXPECT_EQ(hello().holding().ready_step(), 0);
  EXPECT_EQ(hello().holding().ready_epoch(), 1u);
  EXPECT_EQ(hello().holding().applied(), 0);
  EXPECT_TRUE(work_in<ApplyCommit>(core.message(commit(1, 0))));
  EXPECT_TRUE(core.message(commit(1, 0)).empty()) << "the same commit again, while it is applied";
  EXPECT_TRUE(core.done(WorkOk{}).empty());
  EXPECT_EQ(hello().holding().applied(), 1);
  EXPECT_EQ(hello().holding().ready_step(), -1);
}

TEST_F(WorkerDecides, InDoubt_FormWithoutACommit_DropsTheStepAndRunsItAgain) {
  be_in_doubt();
  ASSERT_TRUE(work_in<TakeSeat>(core.message(to_worker(form_of(2, false)))));
  core.done(control::Formed());
  EXPECT_EQ(hello().holding().ready_step(), -1);
  EXPECT_TRUE(core.message(commit(1, 0)).empty()) << "a commit of the dropped attempt changes nothing";
  EXPECT_TRUE(work_in<ComputeStep>(core.message(run_step(2, 0))));
}

TEST_F(WorkerDecides, Commit_OfAnotherEpochOrStep_IsIgnored) {
  be_in_doubt();
  EXPECT_TRUE(core.message(commit(2, 0)).empty());
  EXPECT_TRUE(core.message(commit(1, 1)).empty());
  EXPECT_EQ(hello().holding().applied(), 0);
}

TEST_F(WorkerDecides, FormDuringAStep_InterruptsItAndIsObeyedWhenItHasEnded) {
  take_seat();
  core.message(run_step(1, 0));
  const auto at_once = core.message(to_worker(form_of(2)));
  EXPECT_EQ(find<Interrupt>(at_once)->epoch, 2u);
  EXPECT_FALSE(find<Work>(at_once)) << "the compute thread is busy";
  const auto then = core.done(WorkFailed{"epoch 2 has begun"});
  EXPECT_EQ(trouble_in(then), "") << "an interruption is no trouble";
  EXPECT_EQ(work_in<TakeSeat>(then)->form.epoch(), 2u);
}

TEST_F(WorkerDecides, FormDuringAStep_StepEndsWellAnyway_ReportsNothing) {
  take_seat();
  core.message(run_step(1, 0));
  core.message(to_worker(form_of(2, false)));
  const auto effects = core.done(control::Ready());
  EXPECT_FALSE(find<Say>(effects));
  EXPECT_TRUE(work_in<TakeSeat>(effects));
  EXPECT_EQ(hello().holding().ready_step(), -1);
}

TEST_F(WorkerDecides, SeveralFormsWhileBusy_OnlyTheNewestIsObeyed) {
  take_seat();
  core.message(run_step(1, 0));
  core.message(to_worker(form_of(2)));
  core.message(run_step(2, 0));
  core.message(to_worker(form_of(4)));
  EXPECT_TRUE(core.message(to_worker(form_of(3))).empty()) << "late";
  EXPECT_EQ(work_in<TakeSeat>(core.done(WorkFailed{"interrupted"}))->form.epoch(), 4u);
  EXPECT_FALSE(find<Work>(core.done(control::Formed())));
}

TEST_F(WorkerDecides, Commit_FollowedByANewEpoch_IsStillApplied) {
  be_in_doubt();
  core.message(save(0));  // keeps it busy
  core.message(commit(1, 0));
  core.message(to_worker(form_of(2, false, 1)));
  EXPECT_TRUE(work_in<ApplyCommit>(core.done(WorkOk{})));
  EXPECT_TRUE(work_in<TakeSeat>(core.done(WorkOk{})));
  EXPECT_EQ(hello().holding().applied(), 1);
}

TEST_F(WorkerDecides, OvertakenWhileRestoring_HoldsNothingUntilTheNextFormIsDone) {
  core.message(to_worker(form_of(1)));
  core.message(to_worker(form_of(2)));
  EXPECT_TRUE(work_in<TakeSeat>(core.done(control::Formed())));
  EXPECT_FALSE(hello().has_holding());
  core.done(control::Formed());
  EXPECT_TRUE(hello().has_holding());
}

TEST_F(WorkerDecides, LeavingWhileRestoring_SaysSoAndStaysUntilStop) {
  core.message(to_worker(form_of(1)));
  EXPECT_TRUE(find<Say>(core.leave(TimePoint()))->message.has_leave());
  EXPECT_TRUE(hello().leaving()) << "nobody may have heard it";
  EXPECT_TRUE(find<Say>(core.done(control::Formed()))->message.has_formed());
  const auto effects = core.message(stop("you may go; thank you"));
  EXPECT_TRUE(find<Interrupt>(effects));
  EXPECT_FALSE(find<End>(effects)->failed);
}

TEST_F(WorkerDecides, LeavingWhileNobodyAnswers_EndsSoon) {
  core.connected();
  core.message(to_worker(form_of(1)));
  const auto lost = TimePoint() + std::chrono::minutes(1);
  EXPECT_FALSE(find<End>(core.disconnected(lost)));
  core.connected();  // dials
  EXPECT_FALSE(find<End>(core.leave(lost + std::chrono::seconds(4)))) << "the coordinator may be restarting";
  const auto end = find<End>(core.disconnected(lost + std::chrono::seconds(6)));
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->failed);
  EXPECT_NE(end->why.find("left without a checkpoint"), std::string::npos) << end->why;
}

TEST_F(WorkerDecides, LeavingLongAfterTheLineWasLost_EndsAtOnce) {
  core.connected();
  core.message(to_worker(form_of(1)));
  core.disconnected(TimePoint());
  EXPECT_TRUE(find<End>(core.leave(TimePoint() + std::chrono::minutes(1))));
}

TEST_F(WorkerDecides, SpareThatLeaves_WaitsForAnAnswerThoughItHasHeardNothing) {
  core.connected();
  EXPECT_FALSE(find<End>(core.leave(TimePoint() + std::chrono::hours(1))));
}

TEST_F(WorkerDecides, StopDuringAStep_EndsAtOnceAndIgnoresTheRest) {
  take_seat();
  core.message(run_step(1, 0));
  EXPECT_TRUE(find<End>(core.message(stop("all steps are done"))));
  EXPECT_TRUE(core.done(control::Ready()).empty());
  EXPECT_TRUE(core.message(to_worker(form_of(9))).empty());
  EXPECT_TRUE(core.tick().empty());
}

TEST_F(WorkerDecides, StopOfACoordinatorThatMayComeBack_SaysSo) {
  auto message = stop("stopped after step 3; the checkpoint is written");
  EXPECT_FALSE(find<End>(WorkerCore(facts(), TimePoint{}).message(message))->resumable);
  message.mutable_stop()->set_resumable(true);
  const auto end = find<End>(core.message(message));
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->resumable);
  EXPECT_FALSE(end->failed);
  EXPECT_EQ(end->why, "stopped after step 3; the checkpoint is written");
}

TEST_F(WorkerDecides, WithoutACoordinator_WaitsAsLongAsItWasTold) {
  auto patient = facts();
  patient.patience = std::chrono::hours(12);
  WorkerCore waits(patient, TimePoint{});
  const auto gone = [](WorkerCore& one, Duration time) { return find<End>(one.disconnected(TimePoint() + time)); };
  EXPECT_FALSE(gone(core, std::chrono::minutes(9)));
  EXPECT_TRUE(gone(core, std::chrono::minutes(11))->failed);
  EXPECT_FALSE(gone(waits, std::chrono::hours(11)));
  EXPECT_TRUE(gone(waits, std::chrono::hours(13))->failed);
}

TEST_F(WorkerDecides, RevokedNeighbour_IsCutOffAndTheFailedStepIsReported) {
  take_seat();
  core.message(run_step(1, 0));
  control::ToWorker message;
  message.mutable_revoked()->set_peer("before");
  message.mutable_revoked()->set_reason("before was removed from the run");
  EXPECT_EQ(find<CutOff>(core.message(message))->peer, "before");
  EXPECT_EQ(trouble_in(core.done(WorkFailed{"before was removed from the run"})), "before was removed from the run");
  EXPECT_TRUE(work_in<TakeSeat>(core.message(to_worker(form_of(2, false))))) << "the state is still good";
}

TEST_F(WorkerDecides, Probe_IsAnsweredDuringAStep) {
  take_seat();
  core.message(run_step(1, 0));
  control::ToWorker message;
  message.mutable_probe()->set_peer("other");
  EXPECT_EQ(find<AnswerProbe>(core.message(message))->probe.peer(), "other");
}

TEST_F(WorkerDecides, RunStep_OutOfTurnOrWithoutAState_IsTrouble) {
  EXPECT_EQ(trouble_in(core.message(run_step(0, 0))), "was asked to run a step out of turn");
  take_seat();
  EXPECT_EQ(trouble_in(core.message(run_step(1, 1))), "was asked to run a step out of turn");
  EXPECT_TRUE(core.message(run_step(2, 0)).empty()) << "of an epoch that it has not joined";
}

TEST_F(WorkerDecides, RunStep_Repeated_IsRunOnce) {
  be_in_doubt();
  EXPECT_TRUE(core.message(run_step(1, 0)).empty());
}

TEST_F(WorkerDecides, RunStep_WithAnImpossibleWarmup_IsTrouble) {
  take_seat();
  for (const auto& warmup : {std::vector<int64_t>{1}, {1, 2}, {1, -1}}) {
    auto message = run_step(1, 0);
    for (const int64_t depth : warmup) message.mutable_run_step()->add_warmup(depth);
    EXPECT_EQ(trouble_in(core.message(message)),
              fmt::format("the warm-up [{}] is impossible", fmt::join(warmup, ", ")));
  }
  auto message = run_step(1, 0);
  for (const int64_t depth : {2, 1}) message.mutable_run_step()->add_warmup(depth);
  EXPECT_TRUE(work_in<ComputeStep>(core.message(message)));
}

TEST_F(WorkerDecides, Form_Invalid_IsTroubleAndTheWorkerLives) {
  uint64_t epoch = 0;
  const auto said = [&](auto change) {
    auto form = form_of(++epoch);
    change(form);
    return trouble_in(core.message(to_worker(form)));
  };
  EXPECT_EQ(said([](auto& form) { form.mutable_seat()->set_stage(2); }),
            "there is no seat 0 of stage 2; the run has 2 stages with one seat each");
  EXPECT_EQ(said([](auto& form) { form.mutable_seat()->set_replica(1); }),
            "there is no seat 1 of stage 1; the run has 2 stages with one seat each");
  EXPECT_EQ(said([](auto& form) { form.add_cuts(1); }), "the cuts [2, 1, 1] do not divide 3 blocks among 2 stages");
  EXPECT_EQ(said([](auto& form) { form.set_cuts(0, 3), form.set_cuts(1, 0); }),
            "the cuts [3, 0] do not divide 3 blocks among 2 stages");
  EXPECT_EQ(said([](auto& form) { form.set_step(-1); }), "there is no step -1 to begin from");
  EXPECT_EQ(said([](auto& form) { form.set_restore(false); }),
            "was told to keep the state of step 0, and does not hold it");
  take_seat(++epoch);
}

TEST_F(WorkerDecides, Form_ToKeepAStateOfAnotherSeatOrGeneration_IsTrouble) {
  take_seat();
  auto form = form_of(2, false);
  form.set_generation(2);
  EXPECT_NE(trouble_in(core.message(to_worker(form))), "");
  form = form_of(3, false);
  form.mutable_seat()->set_stage(0);
  EXPECT_NE(trouble_in(core.message(to_worker(form))), "");
}

TEST_F(WorkerDecides, Form_OfAnotherConfig_EndsTheWorkAsOutdated) {
  auto form = form_of(1);
  form.set_config_sha256("another");
  const auto end = find<End>(core.message(to_worker(form)));
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->outdated);
  EXPECT_FALSE(end->failed);
}

TEST_F(WorkerDecides, Evaluate_ReturnsTheLossSum_OutOfTurnIsTrouble) {
  take_seat();
  ASSERT_TRUE(work_in<ComputeLoss>(core.message(evaluate(1, 0))));
  control::Evaluated evaluated;
  evaluated.set_loss_sum(3);
  const auto said = find<Say>(core.done(evaluated))->message.evaluated();
  EXPECT_EQ(said.epoch(), 1u);
  EXPECT_EQ(said.loss_sum(), 3);
  EXPECT_EQ(trouble_in(core.message(evaluate(1, 5))), "was asked to evaluate a step that it does not hold");
}

TEST_F(WorkerDecides, Save_OfAStateItDoesNotHold_IsIgnored) {
  EXPECT_TRUE(core.message(save(0)).empty());
  take_seat();
  EXPECT_TRUE(core.message(save(1)).empty());
  EXPECT_TRUE(work_in<SaveState>(core.message(save(0))));
}

TEST_F(WorkerDecides, PermanentFailure_IsReportedAsFatalEvenAfterANewEpoch) {
  take_seat();
  core.message(run_step(1, 0));
  core.message(to_worker(form_of(2)));
  const auto said = find<Say>(core.done(WorkFailed{"not enough memory", true}));
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->message.trouble().fatal());
}

TEST_F(WorkerDecides, Refusal_EndsTheWorkerWithTheReason) {
  control::ToWorker message;
  message.mutable_refuse()->set_reason("was removed from this run");
  const auto end = find<End>(core.message(message));
  EXPECT_TRUE(end->failed);
  EXPECT_EQ(end->why, "the coordinator refused: was removed from this run");
  EXPECT_EQ(end->retry_after, Duration{});
}

TEST_F(WorkerDecides, RefusalForAWhile_SaysWhenToComeBack) {
  const auto waits = [&](double retry_after_s) {
    WorkerCore worker({}, {});
    control::ToWorker message;
    message.mutable_refuse()->set_retry_after_s(retry_after_s);
    return find<End>(worker.message(message))->retry_after;
  };
  EXPECT_EQ(waits(60), std::chrono::minutes(1));
  EXPECT_EQ(waits(1e300), std::chrono::hours(24));  // a broken coordinator
  for (const double none : {0.0, -1.0, std::nan("")}) EXPECT_EQ(waits(none), Duration{});
}

TEST_F(WorkerDecides, Trouble_NamesTheNeighboursWhoseLinksFailed) {
  take_seat();
  core.message(run_step(1, 0));
  const auto said = find<Say>(core.done(WorkFailed{.reason = "the link broke", .from_next = true}));
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->message.trouble().from_next());
  EXPECT_FALSE(said->message.trouble().from_previous() || said->message.trouble().fatal());
}

TEST_F(WorkerDecides, CoordinatorUnreachable_GivesUpAfterTheTimeoutAndNotBefore) {
  const auto minutes = [](int count) { return TimePoint{} + std::chrono::minutes(count); };
  EXPECT_TRUE(core.disconnected(minutes(9)).empty());
  core.connected();
  core.message(commit(1, 0));  // any message: the line works
  EXPECT_TRUE(core.disconnected(minutes(60)).empty());
  core.connected();
  EXPECT_TRUE(core.disconnected(minutes(69)).empty());
  const auto end = find<End>(core.disconnected(minutes(71)));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->why, "the coordinator at host:1 could not be reached for 660 s");
}

TEST_F(WorkerDecides, CoordinatorThatNeverWaits_DoesNotFillTheMemory) {
  take_seat();
  core.message(run_step(1, 0));
  WorkerEffects effects;
  for (int i = 0; i < 1000 && !core.ended(); ++i) effects = core.message(save(0));
  ASSERT_TRUE(find<End>(effects));
  EXPECT_TRUE(find<End>(effects)->failed);
}

}  // namespace
}  // namespace thinpipe
