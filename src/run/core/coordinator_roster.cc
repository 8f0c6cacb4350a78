// The part of the coordinator's core that knows who takes part: who comes, comes back, is silent, wants to leave or is
// thrown out, and who gets which stage.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "net/invite.h"
#include "run/core/coordinator_core.h"

namespace thinpipe {
namespace {

constexpr size_t kMostAddresses = 16;  // of one worker

}  // namespace

void CoordinatorCore::refuse(SessionId session, const std::string& peer, const std::string& reason, Effects& out) {
  control::ToWorker message;
  message.mutable_refuse()->set_reason(reason);
  out.push_back(SendTo{session, std::move(message)});
  log(out, "refused", fmt::format("{}: {}", peer, reason));
}

void CoordinatorCore::hello(SessionId session, const control::Hello& hello, TimePoint now, Effects& out) {
  if (hello.protocol() != kControlProtocol) {
    return refuse(session, hello.peer(),
                  fmt::format("speaks protocol {} and this run needs {}; install the same version of thinpipe on both "
                              "sides",
                              hello.protocol(), kControlProtocol),
                  out);
  }
  if (hello.peer().empty() || hello.peer().size() > 200 || hello.incarnation().empty()) {
    return refuse(session, hello.peer(), "a worker needs a name of 1 to 200 characters and a process id", out);
  }
  if (revoked_.contains(hello.peer())) {
    return refuse(session, hello.peer(), "was removed from this run; ask its organiser for a new invite", out);
  }
  if (phase_ == Phase::kDone) {
    control::ToWorker message;
    message.mutable_stop()->set_reason(why_);
    out.push_back(SendTo{session, std::move(message)});
    return;
  }
  admit(members_[hello.peer()], session, hello, now, out);
}

void CoordinatorCore::admit(Member& member, SessionId session, const control::Hello& hello, TimePoint now,
                            Effects& out) {
  const bool same_process = member.incarnation == hello.incarnation();
  book_.forget_process(member.incarnation);  // its machine may have moved; a probe may be lost with the connection
  if (member.session && *member.session != session) {
    out.push_back(CloseSession{*member.session, "the same worker has connected anew"});
  }
  if (!same_process) {
    if (!member.incarnation.empty() && member.stage >= 0) {
      log(out, "replaced", fmt::format("{} is a new process", stage_and_peer(member.stage, hello.peer())));
    }
    // A process of the same name keeps the stage: it was started to take its place.
    const int64_t stage = member.stage;
    member = Member{};
    member.stage = stage;
    member.arrival = arrivals_++;
  }
  member.peer = hello.peer();
  member.incarnation = hello.incarnation();
  member.addresses.clear();
  for (const auto& address : hello.data_addresses()) {
    const bool good = member.addresses.size() < kMostAddresses && check_address(address).ok();
    if (good) member.addresses.push_back(address);
  }
  member.machine = hello.machine();
  member.session = session;
  member.heard = now;
  member.holding.reset();
  if (hello.has_holding() && hello.holding().run() == rules_.run) {
    member.holding = hello.holding();
    resolve_doubt(member, out);
  }
  log(out, "joined",
      fmt::format("{} {} from {}", hello.peer(), same_process ? "is back" : "joined",
                  member.addresses.empty() ? "a place that cannot be dialled" : member.addresses.front()));
  if (hello.leaving()) member.leaving = true;
  if (phase_ != Phase::kGathering && member.stage >= 0) {
    abort(fmt::format("{} connected anew", stage_and_peer(member.stage, member.peer)), out);
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
  *message.mutable_commit() = commit_message(*last_commit_);
  send(member, std::move(message), out);
  holding.set_applied(committed_);
  log(out, "in doubt", fmt::format("{}: step {} was committed", member.peer, last_commit_->step + 1));
}

void CoordinatorCore::drop_expired(TimePoint now, Effects& out) {
  if (phase_ == Phase::kDone) return;
  for (auto it = members_.begin(); it != members_.end();) {
    auto& member = it->second;
    if (now - member.heard <= rules_.lease) {
      ++it;
      continue;
    }
    const auto who = member.stage >= 0 ? stage_and_peer(member.stage, member.peer) : member.peer;
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

// ---- going ----

// Who holds a stage stays until its state is in a checkpoint; see act_when_idle().
void CoordinatorCore::leave(Member& member, Effects& out) {
  member.leaving = true;
  if (member.session) log(out, "leaving", fmt::format("{} wants to leave", member.peer));
  if (!member.session || member.stage < 0) release_leavers(out);
}

bool CoordinatorCore::has_leavers() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& one) { return one.second.leaving && one.second.stage >= 0; });
}

// Those that nothing keeps: they have no stage, are gone already, or their state is in the last checkpoint or can't get
// into one because other stages are missing.
void CoordinatorCore::release_leavers(Effects& out) {
  const bool may_save = manifest_step_ != committed_ && !by_stage().empty();
  for (auto it = members_.begin(); it != members_.end();) {
    auto& member = it->second;
    const bool kept = member.session && member.stage >= 0 && (may_save || phase_ != Phase::kGathering);
    if (!member.leaving || kept || phase_ == Phase::kDone) {
      ++it;
      continue;
    }
    control::ToWorker message;
    message.mutable_stop()->set_reason("you may go; thank you");
    send(member, std::move(message), out);
    const bool held_stage = member.stage >= 0;
    const auto text = held_stage ? stage_and_peer(member.stage, member.peer) : member.peer;
    book_.forget_process(member.incarnation);
    it = members_.erase(it);
    if (held_stage && phase_ != Phase::kGathering) abort(fmt::format("{} has left", text), out);
    log(out, "left", fmt::format("{} has left", text));
  }
}

Effects CoordinatorCore::kick(const std::string& peer, TimePoint now) {
  Effects out;
  if (!revoked_.insert(peer).second) return out;
  out.push_back(PersistRevoked{peer});
  control::ToWorker news;
  news.mutable_revoked()->set_peer(peer);
  news.mutable_revoked()->set_reason(fmt::format("{} was removed from the run", peer));
  for (const auto& [name, member] : members_) {
    if (name != peer) send(member, news, out);
  }
  log(out, "kicked", fmt::format("{} was removed from the run", peer));
  if (const auto found = members_.find(peer); found != members_.end()) {
    expel(found->second, "you were removed from this run by its organiser", out);
  }
  advance(now, out);
  return out;
}

// Without its place, and told why. Its stage waits for somebody else.
void CoordinatorCore::expel(Member& member, const std::string& reason, Effects& out) {
  const auto who = member.stage >= 0 ? stage_and_peer(member.stage, member.peer) : member.peer;
  const bool held_stage = member.stage >= 0;
  if (member.session) {
    refuse(*member.session, who, reason, out);
    out.push_back(CloseSession{*member.session, reason});
  }
  book_.forget_process(member.incarnation);
  members_.erase(std::string(member.peer));
  if (held_stage) abort(fmt::format("{} lost its place: {}", who, reason), out);
}

// ---- who gets what ----

// A free stage goes to the worker that still holds its state, else to the one that has waited longest.
void CoordinatorCore::assign(Effects& out) {
  if (rules_.place && cuts_.empty()) return place_all(out);
  std::vector<bool> taken(static_cast<size_t>(rules_.stages), false);
  std::vector<Member*> waiting;
  for (auto& [peer, member] : members_) {
    if (member.stage >= 0) taken[static_cast<size_t>(member.stage)] = true;
    if (member.stage < 0 && member.session && !member.leaving) waiting.push_back(&member);
  }
  const auto give = [&](Member& member, int64_t stage, const std::string& why) {
    member.stage = stage;
    taken[static_cast<size_t>(stage)] = true;
    log(out, "assigned", fmt::format("{} takes {}", member.peer, why));
  };
  std::sort(waiting.begin(), waiting.end(), [](auto* a, auto* b) { return a->arrival < b->arrival; });
  for (auto* member : waiting) {
    const int64_t held = member->holding ? member->holding->seat().stage() : -1;
    if (0 <= held && held < rules_.stages && !taken[static_cast<size_t>(held)])
      give(*member, held, fmt::format("stage {}: it holds its state", held));
  }
  for (auto* member : waiting) {
    if (member->stage >= 0) continue;
    std::vector<Seat> free;
    for (int64_t stage = 0; stage < rules_.stages; ++stage) {
      if (!taken[static_cast<size_t>(stage)]) free.push_back({.stage = stage});
    }
    if (free.empty()) return;
    const SeatChoice choice =
        rules_.seat ? rules_.seat(free, member->machine.memory_bytes())
                    : SeatChoice{free.front(), fmt::format("stage {}: nobody has it", free.front().stage)};
    if (choice.seat) {
      give(*member, choice.seat->stage, choice.why);
    } else {
      why_ = fmt::format("{} {}", member->peer, choice.why);
    }
  }
}

// For a run whose cuts are decided by its machines: once, when there is one for every stage.
void CoordinatorCore::place_all(Effects& out) {
  std::vector<Member*> present;
  for (auto& [peer, member] : members_) {
    if (member.session && !member.leaving) present.push_back(&member);
  }
  if (static_cast<int64_t>(present.size()) < rules_.stages) return;
  std::sort(present.begin(), present.end(), [](auto* a, auto* b) { return a->arrival < b->arrival; });
  std::vector<Machine> machines;
  for (const auto* member : present) {
    machines.push_back(
        {member->peer, member->machine.block_s(), member->machine.ends_s(), member->machine.memory_bytes()});
  }
  const auto placement = rules_.place(machines);
  if (!placement) {
    why_ = placement.error().message;  // somebody else may come
    return;
  }
  cuts_ = placement.value().cuts;
  out.push_back(PersistCuts{cuts_});
  for (size_t stage = 0; stage < placement.value().peers.size(); ++stage) {
    members_.at(placement.value().peers[stage]).stage = static_cast<int64_t>(stage);
  }
  log(out, "placed", placement.value().why);
}

std::string CoordinatorCore::holder(int64_t stage) const {
  for (const auto& [peer, member] : members_) {
    if (member.stage == stage) return peer;
  }
  return "";
}

bool CoordinatorCore::holds_stage(const std::string& peer) const {
  const auto member = members_.find(peer);
  return member != members_.end() && member->second.stage >= 0;
}

bool CoordinatorCore::holds_unit(const std::string& peer, const std::string& unit) const {
  if (!holds_stage(peer) || cuts_.empty()) return false;
  const auto units = model_units(rules_.model, blocks_of_stage(cuts_, members_.at(peer).stage));
  return std::find(units.begin(), units.end(), unit) != units.end();
}

bool CoordinatorCore::saves_unit(const std::string& peer, const std::string& unit) const {
  return holds_unit(peer, unit) && (unit != kSharedUnit || members_.at(peer).stage == rules_.stages - 1);
}

CoordinatorCore::Offer CoordinatorCore::offer() const {
  for (int64_t stage = 0; stage < rules_.stages; ++stage) {
    if (!holder(stage).empty()) continue;
    Offer offer{stage, fmt::format("stage {}: nobody has it", stage), 0};
    for (const auto& file : files_of(stage)) offer.state_bytes += file.bytes();
    return offer;
  }
  return {-1, "every stage has its worker: you would wait until one is free", 0};
}

}  // namespace thinpipe
