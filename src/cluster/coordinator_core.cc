#include "cluster/coordinator_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
      if (!member->formed) note_formed(*member);
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
  if (phase_ == Phase::kDone) {
    control::ToWorker message;
    message.mutable_stop()->set_reason(why_);
    out.push_back(SendTo{session, std::move(message)});
    return;
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
    if (held_stage) {
      abort(reason, out);
    } else {
      log(out, "lost", reason);
    }
  }
  if (stop_requested_ && phase_ == Phase::kGathering && by_stage().empty() && !stages_are_on_their_way()) {
    finish(false,
           fmt::format("stopped without a checkpoint: {}; the last one is of step {}", why_,
                       std::max<int64_t>(0, manifest_step_)),
           out);
  }
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

}  // namespace thinpipe
