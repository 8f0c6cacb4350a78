// The coordinator's core, the part about epochs, steps, evaluations and checkpoints. coordinator_core.cc has the
// events, coordinator_roster.cc who takes part.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "pipeline/schedule.h"
#include "run/core/coordinator_core.h"

namespace thinpipe {

// A new epoch. Who holds the state of the committed steps keeps it; if somebody does not, and no checkpoint is of just
// that step, everybody returns to the last one and the steps since then are run again.
void CoordinatorCore::form(Effects& out) {
  const auto stages = by_stage();
  ++epoch_;
  const auto keeps = [&](const Member& member) {
    return member.holding && member.holding->seat().stage() == member.stage &&
           member.holding->generation() == generation_ && member.holding->applied() == committed_;
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
    basis_version_ = manifest_files_.empty() ? 0 : manifest_files_.front().basis_version();
    save_due_ = false;
  }
  if (saving_step_) {  // the request, or a file, may be lost with a stream or a process: it is asked for anew
    saving_step_.reset();
    arrived_.clear();
    save_due_ = !back;
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
    form.mutable_seat()->set_stage(member.stage);
    form.set_step(committed_);
    if (i + 1 < stages.size()) *form.mutable_next() = neighbour(*stages[i + 1], i, true);
    if (i > 0) *form.mutable_previous() = neighbour(*stages[i - 1], i - 1, false);
    for (const int64_t blocks : cuts_) form.add_cuts(blocks);
    form.set_restore(back || !keeps(member));
    form.set_config_sha256(rules_.config_sha256);
    if (form.restore()) {
      for (auto& file : files_of(member.stage)) *form.add_files() = std::move(file);
    }
    member.formed = false;
    member.ready.reset();
    member.evaluated.reset();
    if (form.restore()) member.holding.reset();  // until it says that it has
    send(member, std::move(message), out);
  }
  phase_ = Phase::kForming;
  for (size_t boundary = 0; boundary < paths_.size(); ++boundary) {
    out.push_back(LogEvent{"path", describe_path(boundary)});
  }
  log(out, "epoch", fmt::format("epoch {}: {} stages, from step {}", epoch_, rules_.stages, committed_));
}

// Only now does it hold the state it was told to restore: it may have failed, or a newer epoch have overtaken the
// order.
void CoordinatorCore::note_formed(Member& member) {
  control::Holding holding;
  holding.set_run(rules_.run);
  holding.mutable_seat()->set_stage(member.stage);
  holding.set_generation(generation_);
  holding.set_applied(committed_);
  holding.set_ready_step(-1);
  member.holding = holding;
  member.formed = true;
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
  const double hop_s = microbatch_s_ > 0 ? std::max(rules_.hop_s, measured_hop_s()) : 0.0;
  return covering_warmup(rules_.stages, rules_.microbatches, compute_s, hop_s);
}

void CoordinatorCore::act_when_idle(TimePoint now, Effects& out) {
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
  const bool must_save = (over || stop_requested_ || has_leavers()) && manifest_step_ != committed_;
  if ((save_due_ || must_save) && !saving_step_) request_save(out);
  if (must_save) return;  // until the manifest is written
  if (over && final_loss_) return finish(false, fmt::format("all {} steps are done", rules_.steps), out);
  if (stop_requested_) {
    return finish(false, fmt::format("stopped after step {}; the checkpoint is written", committed_), out);
  }
  if (has_leavers()) {
    phase_ = Phase::kGathering;
    return advance(now, out);
  }
  if (better_path_known(now, out)) {
    abort("stages that were relayed can reach each other now", out);
    return advance(now, out);
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
  auto decided = decide(rules_.tokens_per_step, rules_.clip, reports);
  if (!decided) return finish(true, decided.error().message, out);
  auto& row = decided.value();
  double compute_s = 0, wait_s = 0, total_s = 0;
  for (const auto& report : reports) {
    compute_s += report.forward_s() + report.backward_s();
    wait_s += report.wait_s();
    total_s += report.total_s();
  }
  step_bytes_ = bytes_of(reports);
  if (!reports.front().basis_hash().empty() && row.apply) ++basis_version_;
  row.basis_version = basis_version_;
  row.metrics = rules_.metrics_line(row, reports);
  row.timing = rules_.timing_line(row, reports);
  if (rules_.microbatches > 0) {
    microbatch_s_ = compute_s / static_cast<double>(rules_.stages * rules_.microbatches);
  }
  wait_share_ = total_s > 0 ? wait_s / total_s : 0;
  step_s_ = total_s / static_cast<double>(rules_.stages);
  out.push_back(PersistCommit{row});
  control::ToWorker message;
  *message.mutable_commit() = commit_message(row);
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
  if (!last_commit_->apply)
    log(out, "skipped", fmt::format("step {}: {}", committed_, why_skipped(*last_commit_, reports)));
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

std::vector<control::StateFile> CoordinatorCore::files_of(int64_t stage) const {
  std::vector<control::StateFile> files;
  if (cuts_.empty()) return files;
  const auto units = model_units(rules_.model, blocks_of_stage(cuts_, stage));
  for (const auto& file : manifest_files_) {
    if (std::find(units.begin(), units.end(), file.unit()) != units.end()) files.push_back(file);
  }
  return files;
}

Effects CoordinatorCore::file_arrived(const control::StateFile& file, TimePoint now) {
  Effects out;
  if (saving_step_ == file.step() && file.generation() == generation_) {
    arrived_[file.unit()] = file;
    complete_save(out);
  }
  advance(now, out);
  return out;
}

// When every unit of the model is there.
void CoordinatorCore::complete_save(Effects& out) {
  WriteManifest manifest;
  for (const auto& unit : model_units(rules_.model, whole_model(rules_.model))) {
    const auto file = arrived_.find(unit);
    if (file == arrived_.end()) return;
    manifest.files.push_back(file->second);
  }
  arrived_.clear();
  out.push_back(std::move(manifest));
}

Effects CoordinatorCore::manifest_written(const std::vector<control::StateFile>& files, TimePoint now) {
  Effects out;
  const int64_t step = files.front().step();
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
  static constexpr const char* kWays[] = {"direct", "direct, dialled from above", "relayed"};
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
    if (member.stage >= 0) one.mutable_seat()->set_stage(member.stage);
    one.set_connected(member.session.has_value());
    one.set_address(member.addresses.empty() ? "" : member.addresses.front());
    one.set_heard_s_ago(seconds(now - member.heard));
  }
  for (size_t boundary = 0; boundary < paths_.size(); ++boundary) {
    auto& link = *status.add_links();
    link.set_boundary(static_cast<int64_t>(boundary));
    link.set_way(kWays[static_cast<int>(paths_[boundary].way)]);
    if (paths_[boundary].facts) *link.mutable_facts() = *paths_[boundary].facts;
  }
}

}  // namespace thinpipe
