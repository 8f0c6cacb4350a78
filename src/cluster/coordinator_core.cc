#include "cluster/coordinator_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "optim/optimizer.h"
#include "pipeline/schedule.h"

namespace thinpipe {
namespace {

// After trouble, before the next attempt: a neighbour that is dying should have the time to be noticed.
constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kLongestRetry = std::chrono::seconds(5);

std::string name_of(int64_t stage, const std::string& peer) { return fmt::format("stage {} ({})", stage, peer); }

}  // namespace

CoordinatorCore::CoordinatorCore(RunRules rules, StoredRun stored, TimePoint now)
    : rules_(std::move(rules)),
      epoch_(stored.epoch),
      generation_(stored.generation),
      committed_(stored.committed),
      last_commit_(std::move(stored.last_commit)),
      skipped_(std::move(stored.skipped)),
      evaluations_(std::move(stored.evaluations)),
      final_loss_(stored.final_loss),
      manifest_step_(stored.manifest_step),
      manifest_files_(std::move(stored.manifest_files)),
      paused_(stored.paused) {
  if (last_commit_) basis_version_ = last_commit_->basis_version;
  // Whoever held a stage may be alive and on its way back: nobody else gets it while its lease lasts.
  for (size_t stage = 0; stage < stored.roster.size(); ++stage) {
    Member member;
    member.peer = stored.roster[stage];
    member.heard = now;
    member.stage = static_cast<int64_t>(stage);
    members_[member.peer] = std::move(member);
  }
  save_due_ =
      rules_.checkpoint_every > 0 && committed_ - std::max<int64_t>(0, manifest_step_) >= rules_.checkpoint_every;
}

void CoordinatorCore::log(Effects& out, std::string kind, std::string text) {
  why_ = text;
  out.push_back(LogEvent{std::move(kind), std::move(text)});
}

void CoordinatorCore::send(const Member& member, control::ToWorker message, Effects& out) {
  if (member.session) out.push_back(SendTo{*member.session, std::move(message)});
}

void CoordinatorCore::to_all(const control::ToWorker& message, Effects& out) {
  for (const auto& [peer, member] : members_) {
    if (member.stage >= 0) send(member, message, out);
  }
}

CoordinatorCore::Member* CoordinatorCore::of_session(SessionId session) {
  for (auto& [peer, member] : members_) {
    if (member.session == session) return &member;
  }
  return nullptr;
}

std::vector<CoordinatorCore::Member*> CoordinatorCore::by_stage() {
  std::vector<Member*> stages(static_cast<size_t>(rules_.stages), nullptr);
  for (auto& [peer, member] : members_) {
    if (member.stage >= 0 && member.session) stages[static_cast<size_t>(member.stage)] = &member;
  }
  if (std::find(stages.begin(), stages.end(), nullptr) != stages.end()) return {};
  return stages;
}

// ---- events ----

Effects CoordinatorCore::message(SessionId session, const control::FromWorker& message, TimePoint now) {
  Effects out;
  if (message.has_hello()) {
    hello(session, message.hello(), now, out);
  } else if (auto* member = of_session(session); member != nullptr) {
    member->heard = now;
    if (message.has_formed() && message.formed().epoch() == epoch_) {
      member->formed = true;
    } else if (message.has_ready() && phase_ == Phase::kRunning && message.ready().epoch() == epoch_ &&
               message.ready().step() == committed_) {
      member->ready = message.ready();
    } else if (message.has_evaluated() && phase_ == Phase::kEvaluating && message.evaluated().epoch() == epoch_ &&
               message.evaluated().step() == committed_) {
      member->evaluated = message.evaluated().loss_sum();
    } else if (message.has_trouble()) {
      trouble(*member, message.trouble(), now, out);
    }
  }
  advance(now, out);
  return out;
}

void CoordinatorCore::hello(SessionId session, const control::Hello& hello, TimePoint now, Effects& out) {
  const auto refuse = [&](const std::string& reason) {
    control::ToWorker message;
    message.mutable_refuse()->set_reason(reason);
    out.push_back(SendTo{session, std::move(message)});
    log(out, "refused", fmt::format("{}: {}", hello.peer(), reason));
  };
  if (hello.protocol() != kControlProtocol) {
    return refuse(
        fmt::format("speaks protocol {} and this run needs {}; install the same version of thinpipe on both "
                    "sides",
                    hello.protocol(), kControlProtocol));
  }
  if (hello.peer().empty() || hello.peer().size() > 200 || hello.incarnation().empty()) {
    return refuse("a worker needs a name of 1 to 200 characters and a process id");
  }
  auto& member = members_[hello.peer()];
  const bool same_process = member.incarnation == hello.incarnation();
  if (member.session && *member.session != session) {
    out.push_back(CloseSession{*member.session, "the same worker has connected anew"});
  }
  if (!same_process) {
    if (!member.incarnation.empty() && member.stage >= 0) {
      log(out, "replaced", fmt::format("{} is a new process", name_of(member.stage, hello.peer())));
    }
    // A process of the same name keeps the stage: it was started to take its place.
    const int64_t stage = member.stage;
    member = Member{};
    member.stage = stage;
    member.arrival = arrivals_++;
  }
  member.peer = hello.peer();
  member.incarnation = hello.incarnation();
  member.address = hello.data_address();
  member.session = session;
  member.heard = now;
  member.holding.reset();
  if (hello.has_holding() && hello.holding().run() == rules_.run) {
    member.holding = hello.holding();
    resolve_doubt(member, out);
  }
  log(out, "joined",
      fmt::format("{} {} from {}", hello.peer(), same_process ? "is back" : "joined", hello.data_address()));
  if (phase_ != Phase::kGathering && member.stage >= 0) {
    abort(fmt::format("{} connected anew", name_of(member.stage, member.peer)), out);
  }
}

// A worker that reported ready(t) and lost the coordinator before the answer: a row means commit, no row abort.
void CoordinatorCore::resolve_doubt(Member& member, Effects& out) {
  auto& holding = *member.holding;
  if (!last_commit_ || holding.generation() != generation_ || holding.applied() != committed_ - 1 ||
      holding.ready_step() != last_commit_->step || holding.ready_epoch() != last_commit_->epoch) {
    return;
  }
  control::ToWorker message;
  auto& commit = *message.mutable_commit();
  commit.set_epoch(last_commit_->epoch);
  commit.set_step(last_commit_->step);
  commit.set_apply(last_commit_->apply);
  commit.set_grad_factor(last_commit_->grad_factor);
  commit.set_basis_version(last_commit_->basis_version);
  send(member, std::move(message), out);
  holding.set_applied(committed_);
  log(out, "in doubt", fmt::format("{}: step {} was committed", member.peer, last_commit_->step + 1));
}

void CoordinatorCore::trouble(Member& member, const control::Trouble& trouble, TimePoint now, Effects& out) {
  const auto who = name_of(member.stage, member.peer);
  if (trouble.fatal()) return finish(true, fmt::format("{}: {}", who, trouble.reason()), out);
  if (trouble.epoch() != epoch_ || phase_ == Phase::kGathering) return;
  ++failures_;
  if (failures_ > rules_.max_failures) {
    return finish(true,
                  fmt::format("step {} failed {} times in a row, last at {}: {}", committed_ + 1, failures_, who,
                              trouble.reason()),
                  out);
  }
  abort(fmt::format("{}: {}", who, trouble.reason()), out);
  const auto wait =
      std::min<Duration>(kLongestRetry, kFirstRetry * (int64_t{1} << std::min<int64_t>(failures_ - 1, 10)));
  retry_at_ = now + wait;
}

Effects CoordinatorCore::session_ended(SessionId session, TimePoint now) {
  Effects out;
  if (auto* member = of_session(session)) {
    member->session.reset();
    member->heard = now;  // the lease counts from here
    if (member->stage >= 0 && phase_ != Phase::kDone) {
      abort(fmt::format("{} lost its connection", name_of(member->stage, member->peer)), out);
    } else {
      members_.erase(std::string(member->peer));
    }
  }
  advance(now, out);
  return out;
}

Effects CoordinatorCore::tick(TimePoint now) {
  Effects out;
  drop_expired(now, out);
  advance(now, out);
  return out;
}

void CoordinatorCore::drop_expired(TimePoint now, Effects& out) {
  if (phase_ == Phase::kDone) return;
  for (auto it = members_.begin(); it != members_.end();) {
    auto& member = it->second;
    if (now - member.heard <= rules_.lease) {
      ++it;
      continue;
    }
    const auto who = member.stage >= 0 ? name_of(member.stage, member.peer) : member.peer;
    const auto reason =
        fmt::format("{} was not heard of for {:.0f} s and has lost its place", who, seconds(now - member.heard));
    if (member.session) out.push_back(CloseSession{*member.session, reason});
    const bool held_stage = member.stage >= 0;
    it = members_.erase(it);
    if (held_stage)
      abort(reason, out);
    else
      log(out, "lost", reason);
  }
}

Effects CoordinatorCore::control(control::ControlRequest::What what, TimePoint now) {
  Effects out;
  if (what == control::ControlRequest::STOP && !stop_requested_) {
    stop_requested_ = true;
    log(out, "stop", "asked to stop after a checkpoint");
  } else if (what == control::ControlRequest::PAUSE && !paused_) {
    paused_ = true;
    out.push_back(PersistPaused{true});
    log(out, "paused", fmt::format("asked to pause after step {}", committed_ + (phase_ == Phase::kRunning ? 1 : 0)));
  } else if (what == control::ControlRequest::RESUME && paused_) {
    paused_ = false;
    out.push_back(PersistPaused{false});
    log(out, "resumed", "asked to go on");
  }
  // Nobody to save anything: a run that stands still stops where its last checkpoint is.
  if (stop_requested_ && phase_ == Phase::kGathering && by_stage().empty()) {
    finish(false,
           fmt::format("stopped while waiting for workers; the last checkpoint is of step {}",
                       std::max<int64_t>(0, manifest_step_)),
           out);
  }
  advance(now, out);
  return out;
}

Effects CoordinatorCore::fail(const std::string& reason) {
  Effects out;
  finish(true, reason, out);
  return out;
}

// ---- what comes next ----

void CoordinatorCore::abort(const std::string& why, Effects& out) {
  if (phase_ == Phase::kDone) return;
  phase_ = Phase::kGathering;
  for (auto& [peer, member] : members_) {
    member.formed = false;
    member.ready.reset();
    member.evaluated.reset();
  }
  log(out, "aborted", fmt::format("step {}: {}", committed_ + 1, why));
}

void CoordinatorCore::finish(bool failed, const std::string& reason, Effects& out) {
  if (phase_ == Phase::kDone) return;
  phase_ = Phase::kDone;
  failed_ = failed;
  log(out, failed ? "failed" : "done", reason);
  control::ToWorker message;
  message.mutable_stop()->set_reason(reason);
  for (const auto& [peer, member] : members_) send(member, message, out);
  out.push_back(Finish{failed, reason});
}

// A free stage goes to the worker that still holds its state, else to the one that has waited longest.
void CoordinatorCore::assign(Effects& out) {
  std::vector<bool> taken(static_cast<size_t>(rules_.stages), false);
  std::vector<Member*> waiting;
  for (auto& [peer, member] : members_) {
    if (member.stage >= 0) taken[static_cast<size_t>(member.stage)] = true;
    if (member.stage < 0 && member.session) waiting.push_back(&member);
  }
  const auto give = [&](Member& member, int64_t stage, const char* why) {
    member.stage = stage;
    taken[static_cast<size_t>(stage)] = true;
    log(out, "assigned", fmt::format("{} takes stage {}: {}", member.peer, stage, why));
  };
  std::sort(waiting.begin(), waiting.end(), [](auto* a, auto* b) { return a->arrival < b->arrival; });
  for (auto* member : waiting) {
    const int64_t held = member->holding ? member->holding->stage() : -1;
    if (0 <= held && held < rules_.stages && !taken[static_cast<size_t>(held)])
      give(*member, held, "it holds its state");
  }
  for (auto* member : waiting) {
    const auto free = std::find(taken.begin(), taken.end(), false);
    if (free == taken.end()) return;
    if (member->stage < 0) give(*member, free - taken.begin(), "the first that nobody has");
  }
}

void CoordinatorCore::advance(TimePoint now, Effects& out) {
  if (phase_ == Phase::kGathering) {
    assign(out);
    if (retry_at_ && now < *retry_at_) return;
    if (by_stage().empty()) return;
    retry_at_.reset();
    form(out);
  }
  const auto all = [&](auto has) {
    const auto stages = by_stage();
    return !stages.empty() && std::all_of(stages.begin(), stages.end(), [&](const Member* one) { return has(*one); });
  };
  if (phase_ == Phase::kForming && all([](const Member& one) { return one.formed; })) phase_ = Phase::kIdle;
  if (phase_ == Phase::kRunning && all([](const Member& one) { return one.ready.has_value(); })) commit(out);
  if (phase_ == Phase::kEvaluating && all([](const Member& one) { return one.evaluated.has_value(); })) {
    finish_evaluation(out);
  }
  if (phase_ == Phase::kIdle) act_when_idle(now, out);
}

// A new epoch. Who holds the state of the committed steps keeps it; if somebody does not, and no checkpoint is of just
// that step, everybody returns to the last one and the steps since then are run again.
void CoordinatorCore::form(Effects& out) {
  const auto stages = by_stage();
  ++epoch_;
  const auto keeps = [&](const Member& member) {
    return member.holding && member.holding->stage() == member.stage && member.holding->generation() == generation_ &&
           member.holding->applied() == committed_;
  };
  const auto lost = std::count_if(stages.begin(), stages.end(), [&](const Member* one) { return !keeps(*one); });
  const bool back = lost > 0 && manifest_step_ != committed_;
  if (back) {
    const int64_t target = std::max<int64_t>(0, manifest_step_);
    if (committed_ > target) {
      log(out, "rollback",
          fmt::format("{} of {} stages lost their state: all return from step {} to the checkpoint of step {}", lost,
                      rules_.stages, committed_, target));
    }
    committed_ = target;
    generation_ = epoch_;
    evaluations_.erase(evaluations_.upper_bound(committed_), evaluations_.end());
    skipped_.erase(skipped_.lower_bound(committed_), skipped_.end());
    final_loss_.reset();
    last_commit_.reset();
    basis_version_ = manifest_files_.empty() ? 0 : manifest_files_.front().basis_version;
    save_due_ = false;
  }
  if (lost > 0) {  // and with it, its part of a checkpoint under way
    saving_step_.reset();
    arrived_.clear();
  }
  PersistEpoch persist{epoch_, generation_, back ? committed_ : -1, {}};
  for (const auto* member : stages) persist.roster.push_back(member->peer);
  out.push_back(std::move(persist));
  for (size_t i = 0; i < stages.size(); ++i) {
    auto& member = *stages[i];
    control::ToWorker message;
    auto& form = *message.mutable_form();
    form.set_epoch(epoch_);
    form.set_generation(generation_);
    form.set_stage(member.stage);
    form.set_step(committed_);
    if (i + 1 < stages.size()) {
      form.set_next_address(stages[i + 1]->address);
      form.set_next_incarnation(stages[i + 1]->incarnation);
    }
    if (i > 0) form.set_previous_incarnation(stages[i - 1]->incarnation);
    form.set_restore(back || !keeps(member));
    if (form.restore() && manifest_step_ >= 0 && committed_ > 0) {
      const auto& file = manifest_files_.at(i);
      form.mutable_file()->set_step(file.step);
      form.mutable_file()->set_name(file.name);
      form.mutable_file()->set_bytes(file.bytes);
      form.mutable_file()->set_sha256(file.sha256);
    }
    member.formed = false;
    member.ready.reset();
    member.evaluated.reset();
    control::Holding holding;
    holding.set_run(rules_.run);
    holding.set_stage(member.stage);
    holding.set_generation(generation_);
    holding.set_applied(committed_);
    holding.set_ready_step(-1);
    member.holding = holding;
    send(member, std::move(message), out);
  }
  phase_ = Phase::kForming;
  log(out, "epoch", fmt::format("epoch {}: {} stages, from step {}", epoch_, rules_.stages, committed_));
}

bool CoordinatorCore::evaluation_due() const {
  if (committed_ == rules_.steps) return !final_loss_;
  return rules_.eval_every > 0 && committed_ > 0 && committed_ % rules_.eval_every == 0 &&
         !evaluations_.contains(committed_);
}

int64_t CoordinatorCore::skipped_in_a_row() const {
  int64_t count = 0;
  while (skipped_.contains(committed_ - 1 - count)) ++count;
  return count;
}

std::vector<int64_t> CoordinatorCore::warmup() const {
  if (rules_.microbatches == 0) return {};
  // Before the first measurement only the ratio matters, and no time under way is known to be worth covering.
  const double compute_s = microbatch_s_ > 0 ? microbatch_s_ : 1.0;
  const double hop_s = microbatch_s_ > 0 ? rules_.hop_s : 0.0;
  return covering_warmup(rules_.stages, rules_.microbatches, {compute_s / 3, compute_s * 2 / 3, hop_s, 0.0}, 0);
}

void CoordinatorCore::act_when_idle(TimePoint, Effects& out) {
  control::ToWorker message;
  const bool over = committed_ == rules_.steps;
  if (evaluation_due() && !stop_requested_) {
    auto& evaluate = *message.mutable_evaluate();
    evaluate.set_epoch(epoch_);
    evaluate.set_step(committed_);
    evaluate.set_windows(over ? rules_.final_windows : rules_.eval_windows);
    phase_ = Phase::kEvaluating;
    return to_all(message, out);
  }
  const bool must_save = (over || stop_requested_) && manifest_step_ != committed_;
  if ((save_due_ || must_save) && !saving_step_) request_save(out);
  if (must_save) return;  // until the manifest is written
  if (over && final_loss_) return finish(false, fmt::format("all {} steps are done", rules_.steps), out);
  if (stop_requested_) {
    return finish(false, fmt::format("stopped after step {}; the checkpoint is written", committed_), out);
  }
  if (paused_) {
    why_ = fmt::format("paused after step {}", committed_);
    return;
  }
  auto& step = *message.mutable_run_step();
  step.set_epoch(epoch_);
  step.set_step(committed_);
  for (const int64_t depth : warmup()) step.add_warmup(depth);
  phase_ = Phase::kRunning;
  to_all(message, out);
}

void CoordinatorCore::commit(Effects& out) {
  std::vector<control::Ready> reports;
  for (auto* member : by_stage()) reports.push_back(*member->ready);
  CommitRow row{.step = committed_, .epoch = epoch_};
  double compute_s = 0, wait_s = 0, total_s = 0;
  step_bytes_ = 0;
  for (const auto& report : reports) {  // in stage order: the same sum whoever was first
    row.loss += report.loss_sum();
    row.squared_norm += report.squared_norm();
    compute_s += report.forward_s() + report.backward_s();
    wait_s += report.wait_s();
    total_s += report.total_s();
    step_bytes_ += report.forward_bytes() + report.backward_bytes();
    if (report.basis_hash() != reports.front().basis_hash()) {
      return finish(true, "the stages disagree on the next basis", out);
    }
  }
  row.loss /= static_cast<double>(rules_.tokens_per_step);
  row.apply = std::isfinite(row.squared_norm) && std::isfinite(row.loss);
  row.grad_factor = row.apply ? clip_factor(row.squared_norm, rules_.clip) : 0.0;
  if (!reports.front().basis_hash().empty() && row.apply) ++basis_version_;
  row.basis_version = basis_version_;
  row.metrics = rules_.metrics_line(row, reports);
  row.timing = rules_.timing_line(row, reports);
  if (rules_.microbatches > 0) {
    microbatch_s_ = compute_s / static_cast<double>(rules_.stages * rules_.microbatches);
  }
  wait_share_ = total_s > 0 ? wait_s / total_s : 0;
  out.push_back(PersistCommit{row});
  control::ToWorker message;
  auto& commit = *message.mutable_commit();
  commit.set_epoch(epoch_);
  commit.set_step(row.step);
  commit.set_apply(row.apply);
  commit.set_grad_factor(row.grad_factor);
  commit.set_basis_version(row.basis_version);
  to_all(message, out);
  ++committed_;
  for (auto* member : by_stage()) {
    member->ready.reset();
    member->holding->set_applied(committed_);
  }
  if (!row.apply) skipped_.insert(row.step);
  last_commit_ = std::move(row);
  failures_ = 0;
  phase_ = Phase::kIdle;
  if (rules_.checkpoint_every > 0 && committed_ % rules_.checkpoint_every == 0) save_due_ = true;
  if (!last_commit_->apply) log(out, "skipped", fmt::format("step {}: loss or norm is not finite", committed_));
  if (skipped_in_a_row() >= rules_.max_skipped) {
    finish(true,
           fmt::format("the loss or its gradient was not finite for {} steps in a row up to step {}; lower optim.lr or "
                       "lengthen optim.warmup",
                       skipped_in_a_row(), committed_),
           out);
  }
}

void CoordinatorCore::finish_evaluation(Effects& out) {
  const auto stages = by_stage();
  const bool is_final = committed_ == rules_.steps;
  const int64_t windows = is_final ? rules_.final_windows : rules_.eval_windows;
  const double loss = *stages.back()->evaluated / static_cast<double>(windows * rules_.tokens_per_window);
  for (auto* member : stages) member->evaluated.reset();
  evaluations_.insert(committed_);
  last_validation_ = loss;
  if (is_final) final_loss_ = loss;
  out.push_back(PersistEvaluation{committed_, loss, is_final});
  log(out, "evaluated", fmt::format("step {}: validation loss {:.4f} on {} sequences", committed_, loss, windows));
  phase_ = Phase::kIdle;
}

// ---- checkpoints ----

void CoordinatorCore::request_save(Effects& out) {
  save_due_ = false;
  saving_step_ = committed_;
  arrived_.clear();
  control::ToWorker message;
  message.mutable_save()->set_step(committed_);
  message.mutable_save()->set_generation(generation_);
  to_all(message, out);
}

Effects CoordinatorCore::file_arrived(const ArrivedFile& file, TimePoint now) {
  Effects out;
  if (saving_step_ == file.step && file.generation == generation_) {
    arrived_[file.stage] = file;
    if (static_cast<int64_t>(arrived_.size()) == rules_.stages) complete_save(out);
  }
  advance(now, out);
  return out;
}

void CoordinatorCore::complete_save(Effects& out) {
  WriteManifest manifest{*saving_step_, generation_, {}};
  for (auto& [stage, file] : arrived_) manifest.files.push_back(std::move(file));
  arrived_.clear();
  out.push_back(std::move(manifest));
}

Effects CoordinatorCore::manifest_written(int64_t step, const std::vector<ArrivedFile>& files, TimePoint now) {
  Effects out;
  manifest_step_ = step;
  manifest_files_ = files;
  saving_step_.reset();
  log(out, "checkpoint", fmt::format("checkpoint of step {} is written", step));
  advance(now, out);
  return out;
}

Effects CoordinatorCore::manifest_failed(const std::string& reason, TimePoint now) {
  Effects out;
  // What can't be kept any more is worth stopping for: the steps since the last checkpoint grow without end.
  finish(true, fmt::format("the checkpoint could not be written: {}", reason), out);
  advance(now, out);
  return out;
}

void CoordinatorCore::describe(control::RunStatus& status, TimePoint now) const {
  static constexpr const char* kNames[] = {"gathering", "forming", "idle", "running", "evaluating", "done"};
  status.set_run(rules_.run);
  status.set_phase(phase_ == Phase::kIdle && paused_ ? "paused" : kNames[static_cast<int>(phase_)]);
  status.set_why(why_);
  status.set_epoch(epoch_);
  status.set_step(committed_);
  status.set_steps(rules_.steps);
  status.set_loss(last_commit_ ? last_commit_->loss : 0);
  status.set_step_bytes(step_bytes_);
  status.set_manifest_step(manifest_step_);
  status.set_paused(paused_);
  status.set_done(phase_ == Phase::kDone);
  status.set_failed(failed_);
  status.set_validation_loss(final_loss_ ? *final_loss_ : last_validation_.value_or(0));
  status.set_wait_share(wait_share_);
  for (const auto& [peer, member] : members_) {
    auto& one = *status.add_members();
    one.set_peer(peer);
    one.set_stage(member.stage);
    one.set_connected(member.session.has_value());
    one.set_address(member.address);
    one.set_heard_s_ago(seconds(now - member.heard));
  }
}

}  // namespace thinpipe
