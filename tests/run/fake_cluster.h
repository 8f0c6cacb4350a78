// A coordinator's core with made-up workers around it: effects are carried out on a store in memory, messages wait in
// queues until a test lets them through, time stands still until it is moved. What must hold at any moment, whatever
// the test does, is checked here as messages pass.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "fake_store.h"
#include "fake_worker.h"
#include "run/core/coordinator_core.h"

namespace thinpipe::test {

inline testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}

inline RunRules small_rules() {
  RunRules rules;
  rules.run = "a run";
  rules.model.mode = ModelMode::kDense;
  rules.model.blocks = 2;
  rules.stages = 2;
  rules.steps = 6;
  rules.tokens_per_step = 4;
  rules.tokens_per_window = 3;
  rules.final_windows = 2;
  rules.lease = std::chrono::seconds(10);
  rules.metrics_line = [](const CommitRow& row, const auto&) { return fmt::format("{{\"step\":{}}}", row.step); };
  rules.timing_line = rules.metrics_line;
  return rules;
}

class FakeCluster {
 public:
  explicit FakeCluster(RunRules rules, FakeStore stored = {}) : store(std::move(stored)), rules_(std::move(rules)) {
    // A block per stage, unless the machines decide.
    if (!rules_.place && store.cuts.empty()) {
      store.cuts.assign(static_cast<size_t>(rules_.stages), 1);
      rules_.model.blocks = rules_.stages;
    }
    core_ = std::make_unique<CoordinatorCore>(rules_, store.read(), now);
  }

  CoordinatorCore& core() { return *core_; }
  FakeWorker& worker(size_t i) { return *workers_[i]; }
  FakeWorker& worker(const std::string& peer) {
    for (auto& one : workers_) {
      if (one->peer == peer) return *one;
    }
    TP_CHECK(false, "no worker {}", peer);
  }
  size_t worker_count() const { return workers_.size(); }
  // ---- what happens ----

  FakeWorker& add(const std::string& peer) {
    workers_.push_back(std::make_unique<FakeWorker>());
    workers_.back()->peer = peer;
    return start_process(*workers_.back());
  }
  // For a test that changes it before it connects.
  FakeWorker& add_unconnected(const std::string& peer) {
    workers_.push_back(std::make_unique<FakeWorker>());
    workers_.back()->peer = peer;
    workers_.back()->incarnation = fmt::format("process {}", ++processes_);
    return *workers_.back();
  }
  FakeWorker& start_process(FakeWorker& worker) {
    auto fresh = FakeWorker{};
    fresh.peer = worker.peer;
    fresh.incarnation = fmt::format("process {}", ++processes_);
    worker = std::move(fresh);
    connect(worker);
    return worker;
  }
  void connect(FakeWorker& worker) {
    worker.session = ++sessions_;
    by_session_[*worker.session] = &worker;
    apply(core_->message(*worker.session, hello_of(worker), now));
  }
  static control::FromWorker hello_of(const FakeWorker& worker) {
    control::FromWorker message;
    auto& hello = *message.mutable_hello();
    hello.set_protocol(kControlProtocol);
    hello.set_peer(worker.peer);
    hello.set_incarnation(worker.incarnation);
    hello.add_data_addresses(worker.peer + ":1");
    hello.mutable_machine()->set_block_s(worker.block_s);
    hello.set_leaving(worker.leaving);
    if (worker.holding) *hello.mutable_holding() = *worker.holding;
    return message;
  }
  // The stream breaks: what it carried is lost, but for the first `kept` messages to the worker.
  void disconnect(FakeWorker& worker, size_t kept = 0) {
    cut_off(worker, kept);
    apply(core_->session_ended(sessions_of_.at(&worker), now));
  }
  void crash(FakeWorker& worker) {
    worker.alive = false;
    if (worker.holding) {
      std::erase_if(uploads, [&](const auto& upload) { return upload.stage == worker.holding->seat().stage(); });
    }
    worker.holding.reset();
    worker.computing.reset();
    if (worker.session) disconnect(worker);
  }
  // A new core from what the old one wrote. All streams break; uploads under way are lost.
  void restart_coordinator() {
    for (auto& worker : workers_) cut_off(*worker, worker->inbox.size());
    uploads.clear();
    probes_.clear();
    dead_ = dies_after_next_epoch = false;
    core_ = std::make_unique<CoordinatorCore>(rules_, store.read(), now);
  }
  void pass_time(Duration by, bool heartbeats = true) {
    now += by;
    control::FromWorker beat;
    beat.mutable_heartbeat();
    for (auto& worker : workers_) {
      if (heartbeats && worker->session) apply(core_->message(*worker->session, beat, now));
    }
    apply(core_->tick(now));
  }
  void tell(control::ControlRequest::What what) { apply(core_->control(what, now)); }
  void say(const FakeWorker& worker, const control::FromWorker& message) {
    apply(core_->message(*worker.session, message, now));
  }

  // ---- letting messages through ----

  bool deliver_from(FakeWorker& worker) {
    if (worker.outbox.empty()) return false;
    const auto message = worker.outbox.front();
    worker.outbox.pop_front();
    if (worker.session) apply(core_->message(*worker.session, message, now));
    return true;
  }
  bool deliver_to(FakeWorker& worker) {
    if (worker.inbox.empty() || !worker.alive) return false;
    const auto message = worker.inbox.front();
    worker.inbox.pop_front();
    obey(worker, message);
    return true;
  }
  bool deliver_upload() {
    if (uploads.empty()) return false;
    const auto upload = uploads.front();
    uploads.pop_front();
    for (const auto& file : upload.files) apply(core_->file_arrived(file, now));
    return true;
  }
  // Until the condition holds (true) or nothing moves any more (false).
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

  // ---- what was seen ----

  // Carries the effects out; only the first `most` of them when the coordinator is to be killed on its way.
  void apply(Effects effects, size_t most = SIZE_MAX) {
    ++depth_;
    for (size_t i = 0; i < effects.size() && i < most && !dead_; ++i) {
      history.push_back(effects[i]);
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
  std::string last_event() const {
    const auto found = all<LogEvent>();
    return found.empty() ? "" : found.back().kind + ": " + found.back().text;
  }
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
  std::optional<Finish> finished() const {
    const auto found = all<Finish>();
    return found.empty() ? std::nullopt : std::optional(found.back());
  }
  control::RunStatus status() const {
    control::RunStatus status;
    core_->describe(status, now);
    return status;
  }

  TimePoint now{};
  FakeStore store;
  // The files of one stage's units, on their way.
  struct Upload {
    int64_t stage;
    std::vector<control::StateFile> files;
  };
  std::deque<Upload> uploads;
  bool hold_uploads = false;
  bool manifest_fails = false;
  bool dies_after_next_epoch = false;  // the coordinator, before it can tell anybody; until it is restarted
  control::PathFacts facts;            // what every probe measures
  double compute_s = 0;                // that every stage reports for a step
  std::vector<Effect> history;

 private:
  void cut_off(FakeWorker& worker, size_t kept) {
    if (worker.session) {
      sessions_of_[&worker] = *worker.session;
      by_session_.erase(*worker.session);
    }
    worker.session.reset();
    worker.inbox.resize(std::min(kept, worker.inbox.size()));
    worker.outbox.clear();
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
    if (send.message.has_probe()) {
      probes_.emplace_back(send.session, send.message.probe());
      return;
    }
    if (send.message.has_form()) worker.latest_epoch = send.message.form().epoch();
    worker.inbox.push_back(send.message);
  }
  void carry_out(const CloseSession& close) {
    const auto found = by_session_.find(close.session);
    if (found == by_session_.end()) return;
    auto& worker = *found->second;
    if (worker.session == close.session) return cut_off(worker, worker.inbox.size());
    by_session_.erase(found);  // it has another one already
  }
  void carry_out(const PersistEpoch& epoch) {
    EXPECT_GT(epoch.epoch, store.epoch);
    EXPECT_EQ(epoch.roster.size(), static_cast<size_t>(rules_.stages));
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
  void carry_out(const PersistRevoked& revoked) { store.revoked.insert(revoked.peer); }
  void carry_out(const PersistCuts& cuts) { store.cuts = cuts.cuts; }
  void carry_out(const WriteManifest& manifest) {
    const auto units = model_units(rules_.model, whole_model(rules_.model));
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
  void carry_out(const LogEvent&) {}
  void carry_out(const Finish&) {}

  // Workers answer at once, whatever else they do.
  void answer_probes() {
    while (!probes_.empty() && !dead_) {
      const auto [session, probe] = probes_.front();
      probes_.pop_front();
      const auto found = by_session_.find(session);
      if (found == by_session_.end() || found->second->silent_to_probes) continue;
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

  // ---- a worker's side ----

  void obey(FakeWorker& worker, const control::ToWorker& message) {
    if (message.has_form() && message.form().epoch() >= worker.latest_epoch) form(worker, message.form());
    if (message.has_run_step() && message.run_step().epoch() == worker.latest_epoch) {
      run_step(worker, message.run_step());
    }
    if (message.has_commit()) commit(worker, message.commit());
    if (message.has_evaluate() && message.evaluate().epoch() == worker.latest_epoch) {
      ASSERT_TRUE(worker.holding) << worker.peer << " is to evaluate without a state";
      EXPECT_EQ(worker.history, committed_history(message.evaluate().step()));
      EXPECT_EQ(worker.history.size(), static_cast<size_t>(message.evaluate().step()));
      control::FromWorker answer;
      answer.mutable_evaluated()->set_epoch(worker.epoch);
      answer.mutable_evaluated()->set_step(message.evaluate().step());
      answer.mutable_evaluated()->set_loss_sum(worker.evaluation_sum);
      worker.outbox.push_back(answer);
    }
    if (message.has_save()) save(worker, message.save());
    if (message.has_stop()) worker.stopped = true;
    if (message.has_refuse()) worker.refused = message.refuse().reason();
    if (message.has_revoked()) worker.told_revoked.push_back(message.revoked().peer());
  }

  void form(FakeWorker& worker, const control::Form& form) {
    worker.epoch = form.epoch();
    worker.computing.reset();
    if (form.restore()) worker.holding.reset();
    if (worker.forming_fails) return worker.say_trouble("cannot form");
    if (form.restore()) {
      ++worker.restores;
      const auto units = model_units(rules_.model, blocks_of_stage(store.cuts, form.seat().stage()));
      ASSERT_EQ(static_cast<size_t>(form.files_size()), store.manifest_step >= 0 ? units.size() : 0);
      worker.history.clear();
      for (int i = 0; i < form.files_size(); ++i) {
        EXPECT_EQ(form.files(i).step(), form.step());
        EXPECT_EQ(form.files(i).unit(), units[static_cast<size_t>(i)]);
        worker.history = files_.at(form.files(i).sha256());
      }
    } else {
      ASSERT_TRUE(worker.holding) << worker.peer << " is to keep a state it does not have";
      EXPECT_EQ(worker.holding->seat().stage(), form.seat().stage());
      EXPECT_EQ(worker.holding->generation(), form.generation());
    }
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(form.step()));
    control::Holding holding;
    holding.set_run(rules_.run);
    *holding.mutable_seat() = form.seat();
    holding.set_generation(form.generation());
    holding.set_applied(static_cast<int64_t>(worker.history.size()));
    holding.set_ready_step(-1);
    worker.holding = holding;
    control::FromWorker answer;
    answer.mutable_formed()->set_epoch(worker.epoch);
    worker.outbox.push_back(answer);
  }

  void run_step(FakeWorker& worker, const control::RunStep& step) {
    ASSERT_TRUE(worker.holding) << worker.peer << " is to run a step without a state";
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(step.step()));
    EXPECT_EQ(worker.history, committed_history(step.step()));
    ++worker.steps_run;
    worker.computing = step;
    worker.compute_s = compute_s;
    if (!worker.slow) worker.finish_step();
  }

  static void commit(FakeWorker& worker, const control::Commit& commit) {
    if (!worker.holding || worker.holding->ready_step() != commit.step() ||
        worker.holding->ready_epoch() != commit.epoch()) {
      return;
    }
    EXPECT_EQ(worker.history.size(), static_cast<size_t>(commit.step()));
    worker.history.push_back(commit.epoch());
    worker.holding->set_applied(static_cast<int64_t>(worker.history.size()));
    worker.holding->set_ready_step(-1);
  }

  void save(FakeWorker& worker, const control::Save& save) {
    if (!worker.holding || static_cast<int64_t>(worker.history.size()) != save.step()) return;
    const int64_t stage = worker.holding->seat().stage();
    Upload upload{stage, {}};
    for (const auto& unit : saved_units(rules_.model, blocks_of_stage(store.cuts, stage))) {
      auto& file = upload.files.emplace_back();
      file.set_step(save.step());
      file.set_generation(save.generation());
      file.set_unit(unit);
      file.set_bytes(1);
      file.set_sha256(fmt::format("hash {}", files_.size()));
      files_[file.sha256()] = worker.history;
    }
    uploads.push_back(std::move(upload));
  }

  RunRules rules_;
  std::unique_ptr<CoordinatorCore> core_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::map<SessionId, FakeWorker*> by_session_;
  std::map<FakeWorker*, SessionId> sessions_of_;  // the last one of each
  std::map<std::string, StageHistory> files_;     // by hash
  SessionId sessions_ = 0;
  int processes_ = 0;
  int depth_ = 0;
  bool dead_ = false;
  std::deque<std::pair<SessionId, control::Probe>> probes_;
};

}  // namespace thinpipe::test
