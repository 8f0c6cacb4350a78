#include "run/core/worker_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/line.h"
#include "base/result.h"
#include "run/core/protocol.h"

namespace thinpipe {
namespace {

// An honest coordinator has at most a handful of messages under way to one worker.
constexpr size_t kMostQueued = 64;

Status check_form(const control::Form& form, const WorkerFacts& facts) {
  const int64_t stage = form.seat().stage();
  if (stage < 0 || stage >= facts.stages || form.seat().replica() != 0) {
    return Error{fmt::format("there is no seat {} of stage {}; the run has {} stages with one seat each",
                             form.seat().replica(), stage, facts.stages)};
  }
  if (form.step() < 0) return Error{fmt::format("there is no step {} to begin from", form.step())};
  const std::vector<int64_t> cuts(form.cuts().begin(), form.cuts().end());
  const bool positive = std::all_of(cuts.begin(), cuts.end(), [](int64_t blocks) { return blocks >= 1; });
  if (static_cast<int64_t>(cuts.size()) != facts.stages || !positive ||
      std::accumulate(cuts.begin(), cuts.end(), int64_t{0}) != facts.blocks) {
    return Error{fmt::format("the cuts [{}] do not divide {} blocks among {} stages", fmt::join(cuts, ", "),
                             facts.blocks, facts.stages)};
  }
  return {};
}

// Depths of 1f1b: one per stage, never deeper than the stage before.
bool is_warmup(const std::vector<int64_t>& warmup, int64_t stages) {
  return static_cast<int64_t>(warmup.size()) == stages &&
         std::all_of(warmup.begin(), warmup.end(), [](int64_t depth) { return depth >= 0; }) &&
         std::is_sorted(warmup.rbegin(), warmup.rend());
}

// A broken coordinator may send any number.
Duration retry_after(const control::Refuse& refuse) {
  constexpr double kLongest_s = 24 * 3600;
  const double wait_s = refuse.retry_after_s();
  if (!(wait_s > 0)) return {};
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(wait_s, kLongest_s)));
}

}  // namespace

WorkerCore::WorkerCore(WorkerFacts facts, TimePoint now) : facts_(std::move(facts)), last_contact_(now) {}

// ---- the line to the coordinator ----

control::FromWorker WorkerCore::connected() {
  dialled_ = true;
  useful_ = false;
  control::FromWorker message;
  auto& hello = *message.mutable_hello();
  hello.set_protocol(kControlProtocol);
  hello.set_peer(facts_.peer);
  hello.set_incarnation(facts_.incarnation);
  for (const auto& address : facts_.addresses) hello.add_data_addresses(address);
  *hello.mutable_machine() = facts_.machine;
  hello.set_leaving(leaving_);
  hello.set_keeps_model(facts_.keeps_model);
  if (holding_) *hello.mutable_holding() = *holding_;
  return message;
}

WorkerEffects WorkerCore::disconnected(TimePoint now) {
  WorkerEffects out;
  if (ended_) return out;
  if (useful_) last_contact_ = now;
  dialled_ = useful_ = false;
  if (now - last_contact_ > facts_.patience) {
    end({.why = fmt::format("the coordinator at {} could not be reached for {:.0f} s", facts_.coordinator,
                            seconds(now - last_contact_)),
         .failed = true},
        out);
  }
  leave_alone(now, out);
  return out;
}

// Without the coordinator there is no checkpoint to wait for.
void WorkerCore::leave_alone(TimePoint now, WorkerEffects& out) {
  if (ended_ || !leaving_ || dialled_ || now - last_contact_ <= kLeavePatience) return;
  end({.why = fmt::format("left without a checkpoint: the coordinator at {} does not answer", facts_.coordinator)},
      out);
}

WorkerEffects WorkerCore::tick(const control::Heartbeat& heartbeat) {
  WorkerEffects out;
  if (ended_) return out;
  control::FromWorker message;
  *message.mutable_heartbeat() = heartbeat;
  say(std::move(message), out);
  return out;
}

WorkerEffects WorkerCore::leave(TimePoint now) {
  WorkerEffects out;
  leaving_ = true;
  leave_alone(now, out);
  if (ended_) return out;
  control::FromWorker message;
  message.mutable_leave();
  say(std::move(message), out);
  return out;
}

WorkerEffects WorkerCore::message(const control::ToWorker& message) {
  WorkerEffects out;
  if (ended_) return out;
  useful_ = true;
  if (message.has_probe()) {
    out.push_back(AnswerProbe{message.probe()});
  } else if (message.has_revoked()) {
    out.push_back(CutOff{message.revoked().peer(), message.revoked().reason()});
  } else if (message.has_refuse()) {
    end({.why = fmt::format("the coordinator refused: {}", message.refuse().reason()),
         .failed = true,
         .retry_after = retry_after(message.refuse())},
        out);
  } else if (message.has_stop()) {
    end({.why = one_line(message.stop().reason()), .resumable = message.stop().resumable()}, out);
  } else if (message.has_form()) {
    take_form(message, out);
  } else if (queue_.size() >= kMostQueued) {
    end({.why = "the coordinator sends messages without waiting for answers; it is broken", .failed = true}, out);
  } else {
    queue_.push_back(message);
  }
  advance(out);
  return out;
}

// A newer epoch makes all older work worthless. Only a commit that is not applied yet stays queued. A coordinator that
// was restarted never repeats an epoch; one that was restored from a backup does, and then what this worker holds is of
// another history.
void WorkerCore::take_form(const control::ToWorker& message, WorkerEffects& out) {
  const auto& form = message.form();
  if (form.epoch() <= latest_epoch_ && message.revision() == latest_revision_) return;
  if (form.epoch() <= latest_epoch_) {
    return end({.why = "another coordinator serves the run, from an older state: joining anew", .outdated = true}, out);
  }
  if (form.config_sha256() != facts_.config_sha256) {
    return end({.why = "the run continues with another config: asking for it", .outdated = true}, out);
  }
  latest_epoch_ = form.epoch();
  latest_revision_ = message.revision();
  out.push_back(Interrupt{latest_epoch_, fmt::format("epoch {} has begun", latest_epoch_)});
  std::erase_if(queue_, [](const control::ToWorker& one) { return !one.has_commit(); });
  queue_.push_back(message);
}

// ---- work ----

void WorkerCore::advance(WorkerEffects& out) {
  while (!ended_ && !doing_ && !queue_.empty()) {
    const auto message = std::move(queue_.front());
    queue_.pop_front();
    doing_ = obey(message, out);
    if (doing_) out.push_back(*doing_);
  }
}

std::optional<Work> WorkerCore::obey(const control::ToWorker& message, WorkerEffects& out) {
  if (message.has_form()) return obey_form(message, out);
  if (message.has_commit()) {
    const auto& commit = message.commit();
    const bool in_doubt = holding_ && holding_->ready_step() == commit.step() &&
                          holding_->ready_epoch() == commit.epoch() && holding_->ready_revision() == commit.revision();
    if (in_doubt) return ApplyCommit{commit};
    return std::nullopt;
  }
  if (message.revision() != revision_) return std::nullopt;  // from a coordinator whose Form it has not heard
  if (message.has_run_step()) return obey_run_step(message.run_step(), out);
  if (message.has_evaluate() && message.evaluate().epoch() == latest_epoch_) {
    if (holds_step(message.evaluate().step())) return ComputeLoss{message.evaluate()};
    complain({"was asked to evaluate a step that it does not hold"}, out);
  }
  // If this step is not here, the coordinator asks again in the next epoch.
  if (message.has_save() && holds_step(message.save().step())) return SaveState{message.save()};
  return std::nullopt;
}

std::optional<Work> WorkerCore::obey_form(const control::ToWorker& message, WorkerEffects& out) {
  const auto& form = message.form();
  epoch_ = form.epoch();
  revision_ = message.revision();
  if (form.restore()) holding_.reset();
  auto status = check_form(form, facts_);
  if (status && !form.restore() && !holds_state_of(form)) {
    status = Error{fmt::format("was told to keep the state of step {}, and does not hold it", form.step())};
  }
  if (status) return TakeSeat{form};
  complain({status.error().message}, out);
  return std::nullopt;
}

bool WorkerCore::holds_state_of(const control::Form& form) const {
  return holds_step(form.step()) && holding_->generation() == form.generation() &&
         holding_->revision() == form.state_revision() && holding_->seat().stage() == form.seat().stage() &&
         holding_->seat().replica() == form.seat().replica();
}

std::optional<Work> WorkerCore::obey_run_step(const control::RunStep& step, WorkerEffects& out) {
  if (step.epoch() != latest_epoch_) return std::nullopt;
  if (!holds_step(step.step())) {
    complain({"was asked to run a step out of turn"}, out);
    return std::nullopt;
  }
  if (holding_->ready_step() == step.step() && holding_->ready_epoch() == step.epoch())
    return std::nullopt;  // repeated
  const std::vector<int64_t> warmup(step.warmup().begin(), step.warmup().end());
  if (!warmup.empty() && !is_warmup(warmup, facts_.stages)) {
    complain({fmt::format("the warm-up [{}] is impossible", fmt::join(warmup, ", "))}, out);
    return std::nullopt;
  }
  return ComputeStep{step};
}

WorkerEffects WorkerCore::done(WorkDone result) {
  WorkerEffects out;
  if (ended_) return out;
  std::visit([&](const auto& one) { finish(one, out); }, result);
  doing_.reset();
  advance(out);
  return out;
}

void WorkerCore::finish(const control::Formed& formed, WorkerEffects& out) {
  if (latest_epoch_ != epoch_) return;  // the next Form decides what this worker holds
  const auto& form = std::get<TakeSeat>(*doing_).form;
  control::Holding holding;
  holding.set_run(facts_.run);
  *holding.mutable_seat() = form.seat();
  holding.set_generation(form.generation());
  holding.set_applied(form.step());
  holding.set_ready_step(-1);
  holding.set_revision(form.state_revision());
  holding_ = std::move(holding);
  control::FromWorker message;
  *message.mutable_formed() = formed;
  message.mutable_formed()->set_epoch(epoch_);
  say(std::move(message), out);
}

// Once Ready is sent, the step is in doubt. So note it first: a later Hello must report it.
void WorkerCore::finish(const control::Ready& ready, WorkerEffects& out) {
  if (latest_epoch_ != epoch_) return;
  const auto& step = std::get<ComputeStep>(*doing_).step;
  holding_->set_ready_step(step.step());
  holding_->set_ready_epoch(step.epoch());
  holding_->set_ready_revision(revision_);
  control::FromWorker message;
  *message.mutable_ready() = ready;
  message.mutable_ready()->set_epoch(step.epoch());
  message.mutable_ready()->set_step(step.step());
  say(std::move(message), out);
}

void WorkerCore::finish(const control::Evaluated& evaluated, WorkerEffects& out) {
  if (latest_epoch_ != epoch_) return;
  const auto& evaluate = std::get<ComputeLoss>(*doing_).evaluate;
  control::FromWorker message;
  *message.mutable_evaluated() = evaluated;
  message.mutable_evaluated()->set_epoch(evaluate.epoch());
  message.mutable_evaluated()->set_step(evaluate.step());
  say(std::move(message), out);
}

void WorkerCore::finish(const WorkOk&, WorkerEffects&) {
  if (!std::holds_alternative<ApplyCommit>(*doing_)) return;
  const auto& commit = std::get<ApplyCommit>(*doing_).commit;
  holding_->set_applied(commit.step() + 1);
  holding_->set_revision(commit.revision());
  holding_->set_ready_step(-1);
}

// Work that a newer epoch interrupted is not trouble.
void WorkerCore::finish(const WorkFailed& failure, WorkerEffects& out) {
  if (failure.fatal || latest_epoch_ == epoch_) complain(failure, out);
}

WorkerEffects WorkerCore::failed(const std::string& reason) {
  WorkerEffects out;
  if (!ended_) complain({reason, /*fatal=*/true}, out);
  return out;
}

void WorkerCore::complain(const WorkFailed& failure, WorkerEffects& out) const {
  control::FromWorker message;
  auto& trouble = *message.mutable_trouble();
  trouble.set_epoch(epoch_);
  trouble.set_reason(failure.reason);
  trouble.set_fatal(failure.fatal);
  trouble.set_from_previous(failure.from_previous);
  trouble.set_from_next(failure.from_next);
  say(std::move(message), out);
}

void WorkerCore::say(control::FromWorker message, WorkerEffects& out) const {
  message.set_revision(revision_);
  out.push_back(Say{std::move(message)});
}

void WorkerCore::end(End end, WorkerEffects& out) {
  ended_ = true;
  latest_epoch_ = UINT64_MAX;
  queue_.clear();
  out.push_back(Interrupt{latest_epoch_, end.why});
  out.push_back(std::move(end));
}

}  // namespace thinpipe
