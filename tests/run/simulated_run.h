// A simulated run: the real coordinator's core and the real workers' cores, joined by queues. A store in memory takes
// the coordinator's durable effects; a worker's weights are a list of the commits it has applied; time stands still
// until a test moves it. This file checks the invariants of every test as messages pass.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/model_spec.h"
#include "fake_store.h"
#include "run/core/coordinator_core.h"
#include "run/core/worker_core.h"

namespace thinpipe::test {

using Texts = std::vector<std::string>;

inline testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}

// Two stages of a block each, 6 steps of 4 tokens, evaluated once at the end over 2 windows of 2.
inline RunRules small_rules() {
  RunRules rules;
  rules.run = "a run";
  rules.vocab = 100;
  rules.validation_windows = 2;
  auto& config = rules.config;
  config.model.mode = ModelMode::kDense;
  config.model.blocks = config.pipeline.stages = 2;
  config.pipeline.schedule = ScheduleKind::kGpipe;
  config.train.steps = 6;
  config.train.seq_len = 2;
  config.train.microbatch = 1;
  config.train.microbatches = 2;
  config.train.eval_every = 0;
  config.optim.clip = 0;
  config.checkpoint.every = 0;
  config.cluster.lease_s = 10;
  return rules;
}

// With `stages` stages of one block each.
inline RunRules small_rules(int64_t stages) {
  auto rules = small_rules();
  rules.config.model.blocks = rules.config.pipeline.stages = stages;
  return rules;
}

// Stands for a stage's weights: the epoch in which each of its steps was committed.
using StageHistory = std::vector<uint64_t>;

// A worker: its real core and simulated work. `inbox` holds messages to it, `outbox` from it.
struct SimulatedWorker {
  std::string peer;
  std::unique_ptr<WorkerCore> core;
  std::optional<SessionId> session;
  std::deque<control::ToWorker> inbox;
  std::deque<control::FromWorker> outbox;
  bool alive = true;
  bool stopped = false;
  std::string refused;  // why it ended, unless it was stopped
  Texts told_revoked;
  // Its answers.
  double squared_norm = 1, loss_sum = 2, evaluation_sum = 6;
  std::string basis_hash;
  std::string sent_to_previous, received_from_previous, sent_to_next, received_from_next;
  bool slow = false;           // a step lasts until finish_step()
  bool hangs = false;          // its heartbeats show no progress
  bool stubborn = false;       // an interrupted step lasts until finish_step() too
  bool forming_fails = false;  // cannot fetch its file, or cannot reach its neighbour
  bool behind_nat = false;     // nobody can dial it
  bool silent_to_probes = false;
  bool leaving = false;
  double block_s = 0;
  uint64_t memory_bytes = 0;
  double compute_s = 0;
  // Its state.
  uint64_t done = 0;   // what its heartbeats say
  uint64_t epoch = 0;  // of the seat it took last
  StageHistory history;
  std::optional<Work> work;  // not yet answered
  bool interrupted = false;  // a newer epoch has begun meanwhile
  int steps_run = 0, restores = 0;
  SessionId last_session = 0;

  const std::optional<control::Holding>& holding() const { return core->holding(); }
  bool computes() const { return work && std::holds_alternative<ComputeStep>(*work); }
  control::Ready report() const {
    control::Ready ready;
    ready.set_squared_norm(squared_norm);
    ready.set_loss_sum(loss_sum);
    ready.set_basis_hash(basis_hash);
    ready.set_sent_to_previous(sent_to_previous);
    ready.set_received_from_previous(received_from_previous);
    ready.set_sent_to_next(sent_to_next);
    ready.set_received_from_next(received_from_next);
    ready.set_forward_s(compute_s);
    return ready;
  }
  control::FromWorker ready(uint64_t of_epoch, int64_t step) const {
    control::FromWorker message;
    *message.mutable_ready() = report();
    message.mutable_ready()->set_epoch(of_epoch);
    message.mutable_ready()->set_step(step);
    return message;
  }
  // Sent by the test, not by its core.
  void say_trouble(const std::string& reason, bool fatal = false) {
    control::FromWorker message;
    message.mutable_trouble()->set_epoch(epoch);
    message.mutable_trouble()->set_reason(reason);
    message.mutable_trouble()->set_fatal(fatal);
    outbox.push_back(message);
  }
};

class SimulatedRun {
 public:
  explicit SimulatedRun(RunRules rules, FakeStore stored = {}) : store(std::move(stored)), rules_(std::move(rules)) {
    start_core();
  }

  CoordinatorCore& core() { return *core_; }
  SimulatedWorker& worker(size_t i) { return *workers_[i]; }
  SimulatedWorker& worker(const std::string& peer) {
    for (auto& one : workers_) {
      if (one->peer == peer) return *one;
    }
    TP_CHECK(false, "no worker {}", peer);
  }
  size_t worker_count() const { return workers_.size(); }

  // ---- events ----

  SimulatedWorker& add(const std::string& peer) {
    auto& worker = add_unconnected(peer);
    connect(worker);
    return worker;
  }
  // Lets a test change it before it connects.
  SimulatedWorker& add_unconnected(const std::string& peer) {
    workers_.push_back(std::make_unique<SimulatedWorker>());
    workers_.back()->peer = peer;
    return *workers_.back();
  }
  SimulatedWorker& start_process(SimulatedWorker& worker) {
    auto fresh = SimulatedWorker{};
    fresh.peer = worker.peer;
    worker = std::move(fresh);
    connect(worker);
    return worker;
  }
  void connect(SimulatedWorker& worker) {
    if (!worker.core) worker.core = std::make_unique<WorkerCore>(facts_of(worker), now);
    if (worker.leaving) act(worker, worker.core->leave(now));
    worker.session = worker.last_session = ++sessions_;
    by_session_[*worker.session] = &worker;
    apply(core_->message(*worker.session, worker.core->connected(), now));
  }
  // The Hello of an unknown worker.
  static control::FromWorker hello_of(const std::string& peer, const std::string& incarnation) {
    WorkerFacts known;
    known.peer = peer;
    known.incarnation = incarnation;
    return WorkerCore(known, {}).connected();
  }
  // The stream breaks and loses its messages, except the first `kept` to the worker.
  void disconnect(SimulatedWorker& worker, size_t kept = 0) {
    cut_off(worker, kept);
    apply(core_->session_ended(worker.last_session, now));
  }
  void crash(SimulatedWorker& worker) {
    worker.alive = false;
    if (worker.holding()) {
      std::erase_if(uploads, [&](const auto& upload) { return upload.stage == worker.holding()->seat().stage(); });
    }
    worker.work.reset();
    if (worker.session) disconnect(worker);
    worker.core = std::make_unique<WorkerCore>(facts_of(worker), now);
  }
  void leave(SimulatedWorker& worker) {
    worker.leaving = true;
    act(worker, worker.core->leave(now));
  }
  // Makes a new core from the stored state. All streams break; unfinished uploads are lost.
  void restart_coordinator() {
    for (auto& worker : workers_) cut_off(*worker, worker->inbox.size());
    uploads.clear();
    probes_.clear();
    dead_ = dies_after_next_epoch = false;
    start_core();
  }
  // In steps of a second at most, as the service's ticks come.
  void pass_time(Duration by, bool heartbeats = true) {
    do {
      const auto part = std::min<Duration>(by, std::chrono::seconds(1));
      by -= part;
      jump_time(part, heartbeats);
    } while (by > Duration{});
  }
  // As if the coordinator stood still meanwhile.
  void jump_time(Duration by, bool heartbeats = false) {
    now += by;
    for (auto& worker : workers_) {
      control::FromWorker beat;
      beat.mutable_heartbeat()->set_done(worker->hangs ? worker->done : ++worker->done);
      if (heartbeats && worker->session) apply(core_->message(*worker->session, beat, now));
    }
    apply(core_->tick(now));
  }
  void tell(control::ControlRequest::What what) { apply(core_->control(what, now)); }
  void say(const SimulatedWorker& worker, const control::FromWorker& message) {
    apply(core_->message(*worker.session, message, now));
  }
  void flood(const SimulatedWorker& worker) { apply(core_->flooded(*worker.session, worker.peer, now)); }
  // Ends the step of a slow worker; it reports unless it was interrupted.
  void finish_step(SimulatedWorker& worker, bool with_report = true) {
    if (!worker.computes()) return;
    worker.work.reset();
    if (with_report && !std::exchange(worker.interrupted, false)) {
      act(worker, worker.core->done(worker.report()));
    } else {
      act(worker, worker.core->done(WorkFailed{"the neighbour is gone"}));
    }
  }

  // ---- message delivery ----

  bool deliver_from(SimulatedWorker& worker) {
    if (worker.outbox.empty()) return false;
    const auto message = worker.outbox.front();
    worker.outbox.pop_front();
    if (worker.session) apply(core_->message(*worker.session, message, now));
    return true;
  }
  bool deliver_to(SimulatedWorker& worker) {
    if (worker.inbox.empty() || !worker.alive) return false;
    const auto message = worker.inbox.front();
    worker.inbox.pop_front();
    give(worker, message);
    return true;
  }
  void give(SimulatedWorker& worker, const control::ToWorker& message) { act(worker, worker.core->message(message)); }
  bool deliver_upload() {
    if (uploads.empty()) return false;
    const auto upload = uploads.front();
    uploads.pop_front();
    for (const auto& file : upload.files) apply(core_->file_arrived(file, now));
    return true;
  }
  // True when the condition holds, false when no messages are left.
  template <class Condition>
  bool pump_until(Condition condition) {
    while (!condition()) {
      bool moved = false;
      for (auto& worker : workers_) moved = moved || deliver_from(*worker);
      if (!moved && !hold_uploads) moved = deliver_upload();
      for (size_t i = 0; i < workers_.size() && !moved; ++i) moved = deliver_to(*workers_[i]);
      if (!moved) return false;
    }
    return true;
  }
  void pump() {
    pump_until([] { return false; });
  }
  void run_to(int64_t committed) {
    ASSERT_TRUE(pump_until([&] { return core_->committed() >= committed; })) << last_event();
  }

  // ---- results ----

  // Carries out the effects; only the first `most` if the coordinator is to be killed midway.
  void apply(Effects effects, size_t most = SIZE_MAX) {
    ++depth_;
    for (size_t i = 0; i < effects.size() && i < most && !dead_; ++i) {
      if (keeps_history) history.push_back(effects[i]);
      std::visit([&](const auto& effect) { carry_out(effect); }, effects[i]);
      dead_ = dies_after_next_epoch && std::holds_alternative<PersistEpoch>(effects[i]);
    }
    if (--depth_ == 0) answer_probes();
  }
  template <class T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const auto& effect : history) {
      if (const auto* one = std::get_if<T>(&effect)) found.push_back(*one);
    }
    return found;
  }
  Texts events(const std::string& kind) const {
    Texts found;
    for (const auto& event : all<LogEvent>()) {
      if (event.kind == kind) found.push_back(event.text);
    }
    return found;
  }
  const std::string& last_event() const { return last_event_; }
  size_t sent(bool (control::ToWorker::*has)() const) const {
    size_t count = 0;
    for (const auto& effect : all<SendTo>()) count += (effect.message.*has)() ? 1 : 0;
    return count;
  }
  std::vector<control::Form> forms() const {
    std::vector<control::Form> found;
    for (const auto& effect : all<SendTo>()) {
      if (effect.message.has_form()) found.push_back(effect.message.form());
    }
    return found;
  }
  const std::optional<Finish>& finished() const { return finished_; }
  control::RunStatus status() const {
    control::RunStatus status;
    core_->describe(status, now);
    return status;
  }

  TimePoint now{};
  FakeStore store;
  // The files of one stage's units, in flight.
  struct Upload {
    int64_t stage;
    std::vector<control::StateFile> files;
  };
  std::deque<Upload> uploads;
  bool hold_uploads = false;
  bool manifest_fails = false;
  bool dies_after_next_epoch = false;  // the coordinator, before it sends anything; until restarted
  control::PathFacts facts;            // what every probe measures
  double compute_s = 0;                // reported by every stage per step
  bool keeps_history = true;
  std::vector<Effect> history;
  std::map<std::string, int> event_counts;                          // by kind
  std::deque<std::pair<SimulatedWorker*, control::ToWorker>> lost;  // on streams that broke; may come late
  bool prints = false;                                              // events, to stdout

 private:
  // Automatic cuts are in the config, where the service writes them.
  void start_core() {
    if (!store.cuts.empty()) {
      rules_.config.pipeline.cuts = store.cuts;
      rules_.config.pipeline.auto_cuts = false;
    }
    core_ = std::make_unique<CoordinatorCore>(rules_, store.read(), now);
  }
  BlockRange blocks_of(int64_t stage) const {
    return store.cuts.empty() ? blocks_of_stage(rules_.config, stage) : blocks_of_stage(store.cuts, stage);
  }

  void cut_off(SimulatedWorker& worker, size_t kept) {
    if (!worker.session) return;
    by_session_.erase(*worker.session);
    worker.session.reset();
    for (size_t i = kept; i < worker.inbox.size(); ++i) lost.emplace_back(&worker, worker.inbox[i]);
    worker.inbox.resize(std::min(kept, worker.inbox.size()));
    worker.outbox.clear();
    act(worker, worker.core->disconnected(now));
  }

  void carry_out(const SendTo& send) {
    if (send.message.has_commit()) {
      const auto& commit = send.message.commit();
      const auto step = static_cast<size_t>(commit.step());
      ASSERT_LT(step, store.rows.size()) << "commit of a step without a row";
      EXPECT_EQ(store.rows[step].epoch, commit.epoch());
      EXPECT_EQ(store.rows[step].apply, commit.apply());
      EXPECT_EQ(store.rows[step].grad_factor, commit.grad_factor());
    }
    const auto found = by_session_.find(send.session);
    if (found == by_session_.end()) return;
    auto& worker = *found->second;
    if (send.message.has_form()) {
      EXPECT_FALSE(store.revoked.contains(worker.peer)) << worker.peer << " was removed, and gets a seat";
    }
    if (send.message.has_probe()) return give(worker, send.message);  // always answered at once
    worker.inbox.push_back(send.message);
  }
  void carry_out(const CloseSession& close) {
    const auto found = by_session_.find(close.session);
    if (found == by_session_.end()) return;
    auto& worker = *found->second;
    if (worker.session == close.session) return cut_off(worker, worker.inbox.size());
    by_session_.erase(found);  // it already has another one
  }
  void carry_out(const PersistEpoch& epoch) {
    EXPECT_GT(epoch.epoch, store.epoch);
    EXPECT_EQ(epoch.roster.size(), rules_.seats().size());
    store.epoch = epoch.epoch;
    store.generation = epoch.generation;
    store.roster = epoch.roster;
    if (epoch.drop_from < 0) return;
    store.rows.resize(std::min(store.rows.size(), static_cast<size_t>(epoch.drop_from)));
    store.evaluations.erase(store.evaluations.upper_bound(epoch.drop_from), store.evaluations.end());
    store.final_loss.reset();
  }
  void carry_out(const PersistCommit& commit) {
    EXPECT_EQ(commit.row.step, static_cast<int64_t>(store.rows.size())) << "rows must be without gaps";
    store.rows.push_back(commit.row);
  }
  void carry_out(const PersistEvaluation& evaluation) {
    EXPECT_EQ(evaluation.step, static_cast<int64_t>(store.rows.size()));
    EXPECT_FALSE(store.evaluations.contains(evaluation.step)) << "evaluated twice";
    store.evaluations[evaluation.step] = evaluation.loss;
    if (evaluation.is_final) store.final_loss = evaluation.loss;
  }
  void carry_out(const PersistPaused& paused) { store.paused = paused.paused; }
  void carry_out(const PersistRevoked& change) {
    if (change.revoked) {
      store.revoked.insert(change.peer);
    } else {
      store.revoked.erase(change.peer);
    }
  }
  void carry_out(const PersistCuts& cuts) { store.cuts = cuts.cuts; }
  void carry_out(const WriteManifest& manifest) {
    const auto units = model_units(rules_.config.model, whole_model(rules_.config.model));
    ASSERT_EQ(manifest.files.size(), units.size());
    const int64_t step = manifest.files.front().step();
    for (size_t i = 0; i < units.size(); ++i) {
      const auto& file = manifest.files[i];
      EXPECT_EQ(file.unit(), units[i]);
      EXPECT_EQ(file.step(), step);
      EXPECT_EQ(files_.at(file.sha256()), committed_history(step)) << "a file of another history";
    }
    if (manifest_fails) return apply(core_->manifest_failed("the disk is full", now));
    store.manifest_step = step;
    store.manifest_files = manifest.files;
    apply(core_->manifest_written(manifest.files, now));
  }
  void carry_out(const LogEvent& event) {
    ++event_counts[event.kind];
    last_event_ = event.kind + ": " + event.text;
    if (prints) fmt::print("{}\n", last_event_);
  }
  void carry_out(const Finish& finish) { finished_ = finish; }

  // Workers answer at once, even when busy.
  void answer_probes() {
    while (!probes_.empty() && !dead_) {
      const auto [session, probe] = probes_.front();
      probes_.pop_front();
      if (!by_session_.contains(session)) continue;
      control::FromWorker answer;
      answer.mutable_probed()->set_incarnation(probe.incarnation());
      if (!worker(probe.peer()).behind_nat) answer.mutable_probed()->set_address(probe.addresses(0));
      *answer.mutable_probed()->mutable_facts() = facts;
      apply(core_->message(session, answer, now));
    }
  }

  StageHistory committed_history(int64_t steps) const {
    StageHistory epochs;
    for (size_t i = 0; i < std::min(static_cast<size_t>(steps), store.rows.size()); ++i)
      epochs.push_back(store.rows[i].epoch);
    return epochs;
  }

  // ---- workers ----

  WorkerFacts facts_of(const SimulatedWorker& worker) {
    WorkerFacts known;
    known.run = rules_.run;
    known.config_sha256 = rules_.config_sha256;
    known.stages = rules_.config.pipeline.stages;
    known.blocks = rules_.config.model.blocks;
    known.peer = worker.peer;
    known.incarnation = fmt::format("process {}", ++processes_);
    known.addresses = {worker.peer + ":1"};
    known.machine.set_block_s(worker.block_s);
    known.machine.set_memory_bytes(worker.memory_bytes);
    return known;
  }

  void act(SimulatedWorker& worker, const WorkerEffects& effects) {
    for (const auto& effect : effects) {
      std::visit([&](const auto& one) { carry_out_for(worker, one); }, effect);
    }
    // Work that needs no waiting is done at once.
    if (!worker.work) return;
    if (worker.computes() && worker.slow && !(worker.interrupted && !worker.stubborn)) return;
    if (worker.computes()) return finish_step(worker);
    const auto work = *std::exchange(worker.work, std::nullopt);
    act(worker, worker.core->done(std::visit([&](const auto& one) { return do_work(worker, one); }, work)));
  }
  void carry_out_for(SimulatedWorker& worker, const Say& say) {
    if (worker.session) worker.outbox.push_back(say.message);
  }
  void carry_out_for(SimulatedWorker& worker, const Interrupt&) { worker.interrupted = worker.work.has_value(); }
  void carry_out_for(SimulatedWorker& worker, const CutOff& cut) { worker.told_revoked.push_back(cut.peer); }
  void carry_out_for(SimulatedWorker& worker, const AnswerProbe& question) {
    if (!worker.silent_to_probes && worker.session) probes_.emplace_back(*worker.session, question.probe);
  }
  void carry_out_for(SimulatedWorker& worker, const Work& work) {
    ASSERT_FALSE(worker.work) << worker.peer << " is to do two things at once";
    worker.work = work;
    worker.interrupted = false;
    if (!worker.computes()) return;
    const auto& step = std::get<ComputeStep>(work).step;
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(step.step()));
    if (step.epoch() == store.epoch) {  // an older one may run until the new Form arrives
      EXPECT_EQ(worker.history, committed_history(step.step())) << worker.peer << " computes on another history";
    }
    ++worker.steps_run;
    worker.compute_s = compute_s;
  }
  void carry_out_for(SimulatedWorker& worker, const End& end) {
    worker.stopped = !end.failed;
    if (end.failed) worker.refused = end.why;
  }

  WorkDone do_work(SimulatedWorker& worker, const TakeSeat& seat) {
    const auto& form = seat.form;
    worker.epoch = form.epoch();
    if (worker.forming_fails) return WorkFailed{"cannot form"};
    if (form.restore()) {
      ++worker.restores;
      const auto units = model_units(rules_.config.model, blocks_of(form.seat().stage()));
      worker.history.clear();
      for (int i = 0; i < form.files_size(); ++i) {
        EXPECT_EQ(form.files(i).step(), form.step());
        EXPECT_EQ(form.files(i).unit(), units[static_cast<size_t>(i)]);
        worker.history = files_.at(form.files(i).sha256());
      }
    }
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(form.step()));
    return control::Formed();
  }
  WorkDone do_work(SimulatedWorker&, const ComputeStep&) { return WorkOk{}; }  // finish_step() does it
  WorkDone do_work(SimulatedWorker& worker, const ApplyCommit& work) {
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(work.commit.step()));
    worker.history.push_back(work.commit.epoch());
    return WorkOk{};
  }
  WorkDone do_work(SimulatedWorker& worker, const ComputeLoss& work) {
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(work.evaluate.step()));
    if (work.evaluate.epoch() == store.epoch) {
      EXPECT_EQ(worker.history, committed_history(work.evaluate.step()));
    }
    control::Evaluated evaluated;
    evaluated.set_loss_sum(worker.evaluation_sum);
    return evaluated;
  }
  WorkDone do_work(SimulatedWorker& worker, const SaveState& work) {
    const int64_t stage = worker.holding()->seat().stage();
    Upload upload{stage, {}};
    for (const auto& unit : saved_units(rules_.config.model, blocks_of(stage))) {
      auto& file = upload.files.emplace_back();
      file.set_step(work.save.step());
      file.set_generation(work.save.generation());
      file.set_unit(unit);
      file.set_bytes(1);
      file.set_sha256(fmt::format("hash {}", files_.size()));
      files_[file.sha256()] = worker.history;
    }
    uploads.push_back(std::move(upload));
    return WorkOk{};
  }

  RunRules rules_;
  std::unique_ptr<CoordinatorCore> core_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::map<SessionId, SimulatedWorker*> by_session_;
  std::map<std::string, StageHistory> files_;  // by hash
  std::optional<Finish> finished_;
  std::string last_event_;
  SessionId sessions_ = 0;
  int processes_ = 0;
  int depth_ = 0;
  bool dead_ = false;
  std::deque<std::pair<SessionId, control::Probe>> probes_;
};

}  // namespace thinpipe::test
