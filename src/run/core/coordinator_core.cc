#include "run/core/coordinator_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/line.h"

namespace thinpipe {
namespace {

// After trouble, before the next attempt: a neighbour that is dying should have the time to be noticed.
constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kLongestRetry = std::chrono::seconds(5);

}  // namespace

std::string stage_and_peer(int64_t stage, const std::string& peer) { return fmt::format("stage {} ({})", stage, peer); }

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
      paused_(stored.paused),
      revoked_(std::move(stored.revoked)),
      cuts_(std::move(stored.cuts)) {
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

// Part of it may be what a worker said.
void CoordinatorCore::log(Effects& out, std::string kind, const std::string& text) {
  why_ = one_line(text);
  out.push_back(LogEvent{std::move(kind), why_});
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
      note_paths(*member, message.formed(), out);
      if (!member->formed) note_formed(*member);
    } else if (message.has_ready() && phase_ == Phase::kRunning && message.ready().epoch() == epoch_ &&
               message.ready().step() == committed_) {
      member->ready = message.ready();
    } else if (message.has_evaluated() && phase_ == Phase::kEvaluating && message.evaluated().epoch() == epoch_ &&
               message.evaluated().step() == committed_) {
      member->evaluated = message.evaluated().loss_sum();
    } else if (message.has_trouble()) {
      trouble(*member, message.trouble(), now, out);
    } else if (message.has_probed()) {
      note_probed(*member, message.probed());
    } else if (message.has_refused()) {
      log(out, "refused", fmt::format("{} turned somebody away: {}", member->peer, message.refused().reason()));
    } else if (message.has_leave() && !member->leaving) {
      leave(*member, out);
    }
  }
  advance(now, out);
  return out;
}

void CoordinatorCore::trouble(Member& member, const control::Trouble& trouble, TimePoint now, Effects& out) {
  const auto who = member.stage >= 0 ? stage_and_peer(member.stage, member.peer) : member.peer;
  if (trouble.fatal() && rules_.open) return expel(member, trouble.reason(), out);
  if (trouble.fatal()) return finish(true, fmt::format("{}: {}", who, trouble.reason()), out);
  if (trouble.epoch() != epoch_ || phase_ == Phase::kGathering) return;
  if (phase_ == Phase::kForming) {  // perhaps a path that was there is not any more
    for (const auto& [peer, other] : members_) {
      if (std::abs(other.stage - member.stage) == 1) book_.forget(member.incarnation, other.incarnation);
    }
  }
  ++failures_;
  if (failures_ >= rules_.max_failures) {
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
    if (member->leaving) {
      leave(*member, out);
    } else if (member->stage >= 0 && phase_ != Phase::kDone) {
      abort(fmt::format("{} lost its connection", stage_and_peer(member->stage, member->peer)), out);
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
  // Asks the relayed ones again, now and then, whether they can do without.
  if (phase_ == Phase::kRunning || phase_ == Phase::kEvaluating) better_path_known(now, out);
  advance(now, out);
  return out;
}

bool CoordinatorCore::stages_are_on_their_way() const {
  const auto holders =
      std::count_if(members_.begin(), members_.end(), [](const auto& one) { return one.second.stage >= 0; });
  return holders == rules_.stages;
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
  message.mutable_stop()->set_reason(why_);
  for (const auto& [peer, member] : members_) send(member, message, out);
  out.push_back(Finish{failed, why_});
}

void CoordinatorCore::advance(TimePoint now, Effects& out) {
  if (phase_ == Phase::kGathering) {
    release_leavers(out);
    assign(out);
    if (retry_at_ && now < *retry_at_) return;
    if (by_stage().empty() || !choose_paths(now, out)) return;
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

}  // namespace thinpipe
