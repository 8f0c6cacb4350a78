#include "run/core/coordinator_core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/line.h"

namespace thinpipe {
namespace {

control::ToWorker stop_message(const std::string& reason, bool resumable = false) {
  control::ToWorker message;
  message.mutable_stop()->set_reason(reason);
  message.mutable_stop()->set_resumable(resumable);
  return message;
}

control::ToWorker to_worker(const CommitRow& row) {
  control::ToWorker message;
  *message.mutable_commit() = commit_message(row);
  return message;
}

// A claim to hold a seat's state counts only from the peer that had it last.
bool is_believed(const Roster& roster, const Steps& steps, const Member& member) {
  const Seat seat{member.holding->seat().stage(), member.holding->seat().replica()};
  const auto last = roster.last_holders.find(seat);
  return last != roster.last_holders.end() && last->second == member.peer && keeps_state(steps, member.holding, seat);
}

// The service ticks many times a second.
constexpr Duration kLongestGap = std::chrono::seconds(1);
constexpr size_t kStepTimes = 15;

}  // namespace

CoordinatorCore::CoordinatorCore(RunRules rules, StoredRun stored, TimePoint now)
    : rules_(std::move(rules)),
      seats_(rules_.seats()),
      start_(now),
      paused_(stored.paused),
      steps_(std::move(stored.steps)),
      saving_(std::move(stored.saving)),
      last_tick_(now) {
  roster_.revoked = std::move(stored.revoked);
  // The holder of a seat may be alive and on its way back: nobody else gets the seat while the lease lasts.
  for (size_t i = 0; stored.roster.size() == seats_.size() && i < seats_.size(); ++i) {
    if (roster_.revoked.contains(stored.roster[i])) continue;
    roster_.members[stored.roster[i]] = Member{.peer = stored.roster[i], .heard = now, .seat = seats_[i]};
    roster_.last_holders[seats_[i]] = stored.roster[i];
  }
  if (steps_.last_commit) steps_.basis_version = steps_.last_commit->basis_version;
  const int64_t every = rules_.config.checkpoint.every;
  saving_.due = every > 0 && steps_.committed - saving_.last_step() >= every;
}

// ---- events ----

Effects CoordinatorCore::message(SessionId session, const control::FromWorker& message, TimePoint now) {
  notice_gap(now);
  if (message.has_hello()) {
    hello(session, message.hello(), now);
  } else if (auto* member = of_session(roster_, session)) {
    note_gap(member->pulse, now - member->heard);
    member->heard = now;
    hear(*member, message, now);
  }
  return advance(now);
}

Effects CoordinatorCore::session_ended(SessionId session, TimePoint now) {
  notice_gap(now);
  if (auto* member = of_session(roster_, session)) {
    member->session.reset();
    member->heard = now;
    if (member->leaving) {
      release_leavers();
    } else if (member->seat && !done()) {
      const bool broke_epoch = phase_ != Phase::kGathering;
      const auto peer = member->peer;
      abort(fmt::format("{} lost its connection", name_of(*member)));
      if (broke_epoch) blame({peer}, "lost its connection", now);
    } else {
      remove(member->peer);
    }
  }
  return advance(now);
}

// This process stood still. What the members said in the meantime waits to be read: nobody was silent. Those who lost
// their places before it, or their connections during it, may be on their way back with their state.
void CoordinatorCore::notice_gap(TimePoint now) {
  const Duration gap = now - last_tick_;
  if (gap <= kLongestGap) return;
  for (auto& [peer, member] : roster_.members) {
    for (auto* time : {&member.heard, &member.pulse.moved, &member.pulse.saving_moved})
      *time = std::min(now, *time + gap);
  }
  began_ += gap;
  saving_began_ += gap;
  last_tick_ = now;
  wait_for_holders(now);
  log("late", fmt::format("the coordinator stood still for {:.1f} s; leases last longer by as much", seconds(gap)));
}

void CoordinatorCore::wait_for_holders(TimePoint now) {
  keep_steps_until_ = now + std::chrono::seconds(rules_.config.cluster.lease_s);
}

Effects CoordinatorCore::tick(TimePoint now) {
  notice_gap(now);
  last_tick_ = now;
  drop_silent(now);
  hang_up_on_quiet(now);
  watch_progress(now);
  // Asks relayed neighbours again; a better path is used after the step.
  if (phase_ == Phase::kRunning || phase_ == Phase::kEvaluating) (void)better_path_known(now);
  return advance(now);
}

Effects CoordinatorCore::file_arrived(const control::StateFile& file, TimePoint now) {
  auto manifest = take_file(saving_, file, steps_.generation, rules_.config.model);
  if (!manifest) return advance(now);
  std::vector<std::string> bases;
  for (const auto& one : manifest->files) bases.push_back(fmt::format("{} {}", one.basis_version(), one.basis_hash()));
  const auto odd = disagreeing(bases);
  if (odd.empty() || !rules_.open) {
    out_.push_back(*std::move(manifest));
    return advance(now);
  }
  give_up_saving(saving_, /*ask_again=*/true);
  std::vector<std::string> peers;
  for (const auto& [peer, member] : roster_.members) {
    if (std::any_of(odd.begin(), odd.end(), [&](size_t i) { return saves_unit(peer, manifest->files[i].unit()); })) {
      peers.push_back(peer);
    }
  }
  send_away(peers, "neighbours saved different bases", now);
  return advance(now);
}

// Whoever sends such a file is broken or lies: an open run goes on without it. A run of one owner stops, because it
// would fail in the same way again.
Effects CoordinatorCore::file_refused(const std::string& peer, const std::string& reason, TimePoint now) {
  if (const auto found = roster_.members.find(peer); found != roster_.members.end()) {
    const auto what = fmt::format("uploaded a checkpoint file that cannot be used: {}", one_line(reason));
    if (!rules_.open) {
      finish(true, fmt::format("{} {}", name_of(found->second), what));
    } else {
      send_away({peer}, what, now);
    }
  }
  return advance(now);
}

Effects CoordinatorCore::flooded(SessionId session, const std::string& peer, TimePoint now) {
  const std::string what = "sends messages without a pause";
  out_.push_back(LogEvent{"refused", fmt::format("{} {}", peer, what)});
  if (rules_.open) send_away({peer}, what, now);
  out_.push_back(CloseSession{session, what});
  return advance(now);
}

Effects CoordinatorCore::manifest_written(const std::vector<control::StateFile>& files, TimePoint now) {
  note_manifest(saving_, files);
  log("checkpoint", fmt::format("the checkpoint of step {} is written", saving_.manifest_step));
  return advance(now);
}

// Stops the run, because without checkpoints the number of steps that can be lost grows without limit.
Effects CoordinatorCore::manifest_failed(const std::string& reason, TimePoint now) {
  finish(true, fmt::format("the checkpoint could not be written: {}", reason));
  return advance(now);
}

Effects CoordinatorCore::control(control::ControlRequest::What what, TimePoint now) {
  if (what == control::ControlRequest::STOP && !stop_requested_) {
    stop_requested_ = true;
    log("stop", "stopping after a checkpoint");
  } else if (what == control::ControlRequest::PAUSE && !paused_) {
    paused_ = true;
    out_.push_back(PersistPaused{true});
    const int64_t last = steps_.committed + (phase_ == Phase::kRunning ? 1 : 0);
    log("paused", fmt::format("pausing after step {}", last));
  } else if (what == control::ControlRequest::RESUME && paused_) {
    paused_ = false;
    out_.push_back(PersistPaused{false});
    log("resumed", "continuing");
  }
  if (stop_requested_ && phase_ == Phase::kGathering && crew().empty()) {  // nobody can save anything
    finish(false,
           fmt::format("stopped while waiting for workers; the last checkpoint is of step {}", saving_.last_step()));
  }
  return advance(now);
}

Effects CoordinatorCore::kick(const std::string& peer, TimePoint now) {
  if (!roster_.revoked.insert(peer).second) return {};
  out_.push_back(PersistRevoked{peer});
  const auto text = fmt::format("{} was removed from the run", peer);
  control::ToWorker news;
  news.mutable_revoked()->set_peer(peer);
  news.mutable_revoked()->set_reason(text);
  for (const auto& [name, member] : roster_.members) {
    if (name != peer) send(member, news);
  }
  log("kicked", text);
  if (const auto found = roster_.members.find(peer); found != roster_.members.end()) {
    expel(found->second, "you were removed from this run by its organiser");
  }
  return advance(now);
}

// Neighbours let it in again when the coordinator names it to them.
Effects CoordinatorCore::pardon(const std::string& peer, TimePoint now) {
  if (roster_.revoked.erase(peer) == 0) return {};
  out_.push_back(PersistRevoked{peer, false});
  log("pardoned", fmt::format("{} may take part again", peer));
  return advance(now);
}

Effects CoordinatorCore::fail(const std::string& reason) {
  finish(true, reason);
  return take_effects();
}

// ---- messages from workers ----

void CoordinatorCore::hello(SessionId session, const control::Hello& hello, TimePoint now) {
  const auto turn_away = [&](const std::string& reason, Duration retry_after = {}) {
    refuse(session, hello.peer(), reason, retry_after);
    out_.push_back(CloseSession{session, reason});
  };
  if (rules_.open && !count_hello(blame_, hello.peer(), now)) send_away({hello.peer()}, "connects too often", now);
  if (const auto away = time_away(blame_, hello.peer(), now)) {
    return turn_away(fmt::format("was sent away; may come back in {:.0f} s", std::ceil(seconds(*away))), *away);
  }
  if (const auto reason = why_refused(roster_, hello)) return turn_away(*reason);
  if (done()) return out_.push_back(SendTo{session, stop_message(why_, resumable_)});
  const auto has_session = [](const auto& one) { return one.second.session.has_value(); };
  if (std::none_of(roster_.members.begin(), roster_.members.end(), has_session)) wait_for_holders(now);
  auto& member = roster_.members[hello.peer()];
  const bool is_back = member.incarnation == hello.incarnation();
  if (member.session && *member.session != session) {
    out_.push_back(CloseSession{*member.session, "the same worker has opened another connection"});
  }
  if (!is_back && !member.incarnation.empty() && member.seat) {
    log("replaced", fmt::format("{} is a new process", name_of(member)));
  }
  paths_.book.forget_process(member.incarnation);  // its machine may have moved; a probe may be lost with the stream
  admit(roster_, member, session, hello, rules_, now);
  if (member.holding && missed_last_commit(steps_, *member.holding)) {
    send(member, to_worker(*steps_.last_commit));
    member.holding->set_applied(steps_.committed);
    member.holding->set_revision(steps_.state_revision);
    log("in doubt", fmt::format("{}: step {} was committed", member.peer, steps_.committed));
  }
  if (member.holding && !is_believed(roster_, steps_, member)) member.holding.reset();
  log("joined", fmt::format("{} {} from {}", member.peer, is_back ? "is back" : "joined",
                            member.addresses.empty() ? "a place that cannot be dialled" : member.addresses.front()));
  if (member.seat && phase_ != Phase::kGathering) {
    abort(fmt::format("{} connected again", name_of(member)));
    blame({hello.peer()}, "connected again", now);
  }
}

// Ignores reports that do not fit the epoch and the step: they are late or repeated. So are answers to another start of
// the coordinator, which may have counted epochs in the same way.
void CoordinatorCore::hear(Member& member, const control::FromWorker& message, TimePoint now) {
  const bool names_epoch = message.has_formed() || message.has_ready() || message.has_evaluated() ||
                           (message.has_trouble() && !message.trouble().fatal());
  if (names_epoch && message.revision() != steps_.revision) return;
  const auto fits = [&](const auto& report, Phase phase) {
    return member.seat && phase_ == phase && report.epoch() == steps_.epoch && report.step() == steps_.committed;
  };
  if (message.has_heartbeat()) {
    note_heartbeat(member.pulse, message.heartbeat(), now);
    if (phase_ == Phase::kEvaluating && member.seat == seats_.back()) {
      steps_.windows_done =
          std::clamp<int64_t>(message.heartbeat().windows_done(), 0, rules_.windows_after(steps_.committed));
    }
  } else if (message.has_formed()) {
    formed(member, message.formed());
  } else if (message.has_ready() && fits(message.ready(), Phase::kRunning)) {
    ready(member, message.ready(), now);
  } else if (message.has_evaluated() && fits(message.evaluated(), Phase::kEvaluating)) {
    steps_.evaluated[*member.seat] = message.evaluated().loss_sum();
  } else if (message.has_trouble()) {
    trouble(member, message.trouble(), now);
  } else if (message.has_probed()) {
    const auto* other = of_process(roster_, message.probed().incarnation());
    if (other != nullptr) note_probed(paths_, member, *other, message.probed());
  } else if (message.has_refused()) {
    log("turned away", fmt::format("{} turned somebody away: {}", member.peer, message.refused().reason()));
  } else if (message.has_leave() && !member.leaving) {
    member.leaving = true;
    log("leaving", fmt::format("{} wants to leave", member.peer));
    if (!member.seat) release_leavers();
  }
}

// Only now does the worker hold the restored state. Before, it might have failed, or a newer epoch might have overtaken
// the order.
void CoordinatorCore::formed(Member& member, const control::Formed& formed) {
  if (!member.seat || formed.epoch() != steps_.epoch) return;
  if (!steps_.formed.insert(*member.seat).second) return;  // a repeated one must not write another event
  if (formed.has_next() && note_measured(paths_, crew(), member.seat->stage, formed.next())) {
    log("path", describe_path(paths_, static_cast<size_t>(member.seat->stage)));
  }
  member.holding = holding_of(steps_, rules_, *member.seat);
  roster_.last_holders[*member.seat] = member.peer;
}

void CoordinatorCore::ready(Member& member, const control::Ready& ready, TimePoint now) {
  const auto problem = why_impossible(ready);
  if (!problem) {
    steps_.ready[*member.seat] = ready;
  } else if (rules_.open) {
    send_away({member.peer}, *problem, now);
  } else {
    finish(true, fmt::format("{} {}", name_of(member), *problem));
  }
}

void CoordinatorCore::trouble(Member& member, const control::Trouble& trouble, TimePoint now) {
  const auto what = fmt::format("{}: {}", name_of(member), trouble.reason());
  if (trouble.fatal() && rules_.open) {
    (void)thinpipe::send_away(blame_, member.peer, now);
    return expel(member, trouble.reason());
  }
  if (trouble.fatal()) return finish(true, what);
  if (!member.seat || trouble.epoch() != steps_.epoch || phase_ == Phase::kGathering || done()) return;
  if (phase_ == Phase::kForming) {  // a path that worked may be gone
    for (const auto& [peer, other] : roster_.members) {
      if (other.seat && std::abs(other.seat->stage - member.seat->stage) == 1) {
        paths_.book.forget(member.incarnation, other.incarnation);
      }
    }
  }
  const auto too_often = count_failure(steps_, rules_, what, now);
  if (too_often && !rules_.open) return finish(true, *too_often);
  std::vector<std::string> suspects{member.peer};
  for (const auto& [peer, other] : roster_.members) {
    const int64_t side = other.seat ? other.seat->stage - member.seat->stage : 0;
    if ((side == -1 && trouble.from_previous()) || (side == 1 && trouble.from_next())) suspects.push_back(peer);
  }
  abort(what);
  blame(suspects, what, now);
}

// ---- members that go ----

void CoordinatorCore::remove(const std::string& peer) {
  const auto found = roster_.members.find(peer);
  paths_.book.forget_process(found->second.incarnation);
  roster_.members.erase(found);
}

void CoordinatorCore::release_leavers() {
  if (done()) return;
  const bool can_save = saving_.manifest_step != steps_.committed && !crew().empty();
  for (const auto& leaver : free_to_leave(roster_, can_save || phase_ != Phase::kGathering)) {
    const auto& member = roster_.members.at(leaver.peer);
    const bool held_seat = member.seat.has_value();
    send(member, stop_message("you may go; thank you"));
    remove(leaver.peer);
    if (held_seat && phase_ != Phase::kGathering) abort(leaver.why);
    log("left", leaver.why);
  }
}

void CoordinatorCore::blame(const std::vector<std::string>& peers, const std::string& reason, TimePoint now) {
  if (!rules_.open || done()) return;
  const auto over = count_fault(blame_, peers, rules_.config.cluster.max_failures);
  send_away(over, fmt::format("too much trouble, last: {}", reason), now);
}

void CoordinatorCore::send_away(const std::vector<std::string>& peers, const std::string& reason, TimePoint now) {
  for (const auto& peer : peers) {
    const auto time = thinpipe::send_away(blame_, peer, now);
    const auto found = roster_.members.find(peer);
    if (found == roster_.members.end()) continue;
    expel(found->second, fmt::format("{}; may come back in {:.0f} s", reason, seconds(time)), time);
  }
}

// Takes the member's place away and tells it why. The stage waits for somebody else.
void CoordinatorCore::expel(const Member& member, const std::string& reason, Duration retry_after) {
  const auto who = name_of(member);
  const bool held_seat = member.seat.has_value();
  if (member.session) {
    refuse(*member.session, who, reason, retry_after);
    out_.push_back(CloseSession{*member.session, reason});
  }
  remove(std::string(member.peer));
  if (held_seat) abort(fmt::format("{} lost its place: {}", who, reason));
}

void CoordinatorCore::drop_silent(TimePoint now) {
  if (done()) return;
  for (const auto& lost : expired(roster_, rules_, now)) {
    const auto& member = roster_.members.at(lost.peer);
    const bool held_seat = member.seat.has_value();
    if (member.session) out_.push_back(CloseSession{*member.session, lost.why});
    remove(lost.peer);
    if (held_seat) {
      abort(lost.why);
    } else {
      log("lost", lost.why);
    }
  }
  if (stop_requested_ && phase_ == Phase::kGathering && !every_seat_is_held(roster_, seats_)) {
    finish(false,
           fmt::format("stopped without a checkpoint: {}; the last one is of step {}", why_, saving_.last_step()));
  }
}

// It keeps its seat for the lease: if it was only slow, it comes back with its state and nothing is lost.
void CoordinatorCore::hang_up_on_quiet(TimePoint now) {
  if (!rules_.open || done()) return;
  for (const auto& quiet : gone_quiet(roster_, rules_, now)) {
    auto& member = roster_.members.at(quiet.peer);
    out_.push_back(CloseSession{*member.session, quiet.why});
    member.session.reset();
    if (!member.seat) {
      log("silent", quiet.why);
      remove(quiet.peer);
      continue;
    }
    const bool broke_epoch = phase_ != Phase::kGathering;
    gather("silent", quiet.why);
    if (broke_epoch) blame({quiet.peer}, quiet.why, now);
  }
}

// Whether the seat's holder has answered the order of the present phase.
bool CoordinatorCore::has_answered(Seat seat) const {
  return phase_ == Phase::kForming      ? steps_.formed.contains(seat)
         : phase_ == Phase::kRunning    ? steps_.ready.contains(seat)
         : phase_ == Phase::kEvaluating ? steps_.evaluated.contains(seat)
                                        : true;
}

void CoordinatorCore::watch_saving(const std::vector<Member*>& crew, TimePoint now) {
  const auto deadlines = deadlines_of(Duty::kSaving, steps_.step_times_s);
  if (!saving_.step || now - saving_began_ <= deadlines.act) return;
  std::vector<OnDuty> duties;
  for (const auto* member : crew) {
    const auto units = units_saved_by(rules_, *member->seat);
    duties.push_back({&member->pulse, std::all_of(units.begin(), units.end(),
                                                  [&](const auto& unit) { return saving_.arrived.contains(unit); })});
  }
  const auto stall = find_unsaved(duties, saving_began_, deadlines, now);
  if (!stall) return;
  give_up_saving(saving_, /*ask_again=*/true);
  end_stall(crew, *stall, "its checkpoint", now);
}

void CoordinatorCore::watch_progress(TimePoint now) {
  if (const auto present = crew(); !done() && !present.empty()) watch_saving(present, now);
  const auto present = crew();
  const bool forming = phase_ == Phase::kForming, running = phase_ == Phase::kRunning;
  if (present.empty() || (!forming && !running && phase_ != Phase::kEvaluating)) return;
  const auto& train = rules_.config.train;
  const auto windows = static_cast<double>(rules_.windows_after(steps_.committed));
  const double size = forming || running ? 1 : 1 + windows / static_cast<double>(train.microbatches * train.microbatch);
  const auto duty = forming ? Duty::kForming : running ? Duty::kStepping : Duty::kEvaluating;
  const auto deadlines = deadlines_of(duty, steps_.step_times_s, size);
  std::vector<OnDuty> duties;
  for (auto* member : present) {
    duties.push_back({&member->pulse, has_answered(*member->seat)});
    const auto stuck = time_stuck(member->pulse, began_, now);
    if (duties.back().finished || member->pulse.noticed || stuck <= deadlines.notice) continue;
    member->pulse.noticed = true;
    log("stuck", fmt::format("{} has made no progress for {:.1f} s; the last step took {:.1f} s", name_of(*member),
                             seconds(stuck), steps_.step_times_s.back()));
  }
  if (const auto stall = find_stall(duties, began_, deadlines, now)) {
    end_stall(present, *stall, forming ? "its new seat" : running ? "its step" : "the evaluation", now);
  }
}

// One suspect is the culprit. Of several, the one that is suspected again and again.
void CoordinatorCore::end_stall(const std::vector<Member*>& crew, const Stall& stall, const char* duty, TimePoint now) {
  std::vector<std::string> peers, names;
  for (const size_t stage : stall.suspects) {
    peers.push_back(crew[stage]->peer);
    names.push_back(name_of(*crew[stage]));
  }
  const auto what =
      fmt::format("{}: no progress with {} for {:.1f} s", fmt::join(names, " and "), duty, seconds(stall.time));
  const auto too_often = count_failure(steps_, rules_, what, now);
  if (too_often && !rules_.open) return finish(true, *too_often);
  abort(what);
  if (peers.size() == 1 && rules_.open) return send_away(peers, what, now);
  blame(peers, what, now);
}

// ---- what comes next ----

// The state machine. Repeats until the phase no longer changes: the next change needs another event.
Effects CoordinatorCore::advance(TimePoint now) {
  for (auto before = Phase::kDone; before != phase_;) {
    before = phase_;
    if (phase_ == Phase::kGathering && ready_to_form(now)) form(now);
    if (phase_ == Phase::kForming && steps_.formed.size() == seats_.size()) phase_ = Phase::kIdle;
    if (phase_ == Phase::kRunning && steps_.ready.size() == seats_.size()) commit(now);
    if (phase_ == Phase::kEvaluating && steps_.evaluated.size() == seats_.size()) end_evaluation();
    if (phase_ == Phase::kIdle) act_when_idle(now);
  }
  return take_effects();
}

bool CoordinatorCore::ready_to_form(TimePoint now) {
  release_leavers();
  give_seats();
  if (steps_.retry_at && now < *steps_.retry_at) return false;
  const auto present = crew();
  if (present.empty()) return false;
  if (gives_up_too_early(present, now)) {
    why_ = "waiting for those who have the state of the last steps";
    return false;
  }
  auto paths = choose_paths(paths_, present, now);
  std::move(paths.probes.begin(), paths.probes.end(), std::back_inserter(out_));
  if (!paths.decided) why_ = paths.why;
  return paths.decided;
}

void CoordinatorCore::give_seats() {
  const auto seating = decide_seats(roster_, rules_);
  if (!seating.cuts.empty()) {
    rules_.config.pipeline.cuts = seating.cuts;
    rules_.config.pipeline.auto_cuts = false;
    out_.push_back(PersistCuts{seating.cuts});
    log("placed", seating.why);
  }
  for (const auto& peer : seating.displaced) {
    roster_.members.at(peer).seat.reset();
    log("displaced", fmt::format("{} gives its stage back to the worker that holds its state", peer));
  }
  for (const auto& [peer, seat, why] : seating.given) {
    roster_.members.at(peer).seat = seat;
    if (!why.empty()) log("assigned", fmt::format("{} takes {}", peer, why));
  }
  if (!seating.why.empty()) why_ = one_line(seating.why);
}

std::vector<bool> CoordinatorCore::restores_of(const std::vector<Member*>& crew) const {
  std::vector<bool> restores;
  for (const auto* member : crew) restores.push_back(!keeps_state(steps_, member->holding, *member->seat));
  return restores;
}

Beginning CoordinatorCore::beginning_with(const std::vector<Member*>& crew) const {
  const auto restores = restores_of(crew);
  const auto lost = static_cast<size_t>(std::count(restores.begin(), restores.end(), true));
  return decide_beginning(saving_, steps_.committed, lost, seats_.size());
}

bool CoordinatorCore::gives_up_too_early(const std::vector<Member*>& crew, TimePoint now) const {
  if (now >= keep_steps_until_ || beginning_with(crew).step == steps_.committed) return false;
  const auto may_return = [&](const std::string& peer) {
    const auto found = roster_.members.find(peer);
    const bool is_here = found != roster_.members.end() && found->second.session;
    return !is_here && !roster_.revoked.contains(peer) && !time_away(blame_, peer, now);
  };
  const auto restores = restores_of(crew);
  for (size_t i = 0; i < restores.size(); ++i) {
    const auto last = roster_.last_holders.find(seats_[i]);
    if (restores[i] && (last == roster_.last_holders.end() || !may_return(last->second))) return false;
  }
  return true;
}

// Begins a new epoch. Workers with the state of the committed steps keep it; decide_beginning() says what others do.
void CoordinatorCore::form(TimePoint now) {
  const auto present = crew();
  const auto restores = restores_of(present);
  const auto beginning = beginning_with(present);
  if (beginning.step < steps_.committed) log("rollback", beginning.why);
  if (beginning.all_restore) saving_.due = false;
  give_up_saving(saving_, !beginning.all_restore);
  begin_epoch(steps_, beginning, saving_.manifest_files.empty() ? 0 : saving_.manifest_files.front().basis_version());

  PersistEpoch persist{
      steps_.epoch, steps_.generation, beginning.all_restore ? beginning.step : -1, {}, steps_.state_revision};
  for (const auto* member : present) persist.roster.push_back(member->peer);
  out_.push_back(std::move(persist));
  for (size_t i = 0; i < present.size(); ++i) {
    const bool restore = beginning.all_restore || restores[i];
    send(*present[i], form_message(present, i, restore));
    if (restore) present[i]->holding.reset();  // until it reports Formed
  }
  phase_ = Phase::kForming;
  began_ = now;
  for (size_t i = 0; i < paths_.chosen.size(); ++i) out_.push_back(LogEvent{"path", describe_path(paths_, i)});
  log("epoch", fmt::format("epoch {}: {} stages, from step {}; {}", steps_.epoch, seats_.size(), steps_.committed,
                           beginning.why));
}

control::ToWorker CoordinatorCore::form_message(const std::vector<Member*>& crew, size_t i, bool restore) const {
  control::ToWorker message;
  auto& form = *message.mutable_form();
  form.set_epoch(steps_.epoch);
  form.set_generation(steps_.generation);
  *form.mutable_seat() = seat_message(*crew[i]->seat);
  form.set_step(steps_.committed);
  if (i + 1 < crew.size()) *form.mutable_next() = neighbour_at(paths_, i, *crew[i + 1], true);
  if (i > 0) *form.mutable_previous() = neighbour_at(paths_, i - 1, *crew[i - 1], false);
  for (const int64_t blocks : blocks_per_stage(rules_.config)) form.add_cuts(blocks);
  form.set_config_sha256(rules_.config_sha256);
  form.set_restore(restore);
  form.set_state_revision(steps_.state_revision);
  if (!restore) return message;
  for (auto& file : files_of(saving_, units_of(rules_, *crew[i]->seat))) *form.add_files() = std::move(file);
  return message;
}

void CoordinatorCore::act_when_idle(TimePoint now) {
  const Wishes wishes{stop_requested_, paused_, a_holder_is_leaving(roster_), better_path_known(now)};
  const auto next = decide_next(steps_, saving_, wishes, rules_);
  if (next.save) {
    begin_saving(saving_, steps_.committed);
    saving_began_ = now;
    send_to_crew(save_order(steps_));
  }
  switch (next.move) {
    case Move::kEvaluate:
      phase_ = Phase::kEvaluating;
      steps_.windows_done = 0;
      began_ = now;
      return send_to_crew(evaluate_order(steps_, rules_));
    case Move::kRunStep:
      phase_ = Phase::kRunning;
      began_ = now;
      return send_to_crew(run_order(steps_, rules_, slowest_hop_s(paths_, rules_.packet_bytes)));
    case Move::kRegroup:
      return gather("regrouping", next.why);
    case Move::kFinish:
      return finish(false, next.why);
    case Move::kWait:
      why_ = next.why;
  }
}

void CoordinatorCore::commit(TimePoint now) {
  const auto present = crew();
  std::vector<std::string> names, peers, bases;
  for (const auto* member : present) {
    names.push_back(name_of(*member));
    peers.push_back(member->peer);
    bases.push_back(steps_.ready.at(*member->seat).basis_hash());
  }
  const auto pick = [&](const std::vector<size_t>& stages) {
    std::vector<std::string> picked;
    for (const size_t stage : stages) picked.push_back(peers[stage]);
    return picked;
  };
  if (const auto odd = disagreeing(bases); rules_.open && !odd.empty()) {
    abort("neighbours disagree on the next basis");
    return send_away(pick(odd), "disagrees with a neighbour on the next basis", now);
  }
  if (const auto odd = behind_changed_payloads(steps_); !odd.empty()) {
    std::vector<std::string> who;
    for (const size_t stage : odd) who.push_back(names[stage]);
    const auto what = fmt::format("{} do not agree on what crossed the cut between them", fmt::join(who, " and "));
    const auto too_often = count_failure(steps_, rules_, what, now);
    if (too_often && !rules_.open) return finish(true, *too_often);
    abort(what);
    return blame(pick(odd), what, now);
  }
  const auto behind = behind_nonfinite(steps_);
  const auto committed = commit_step(steps_, rules_, names, now - start_);
  if (!committed) return finish(true, committed.error().message);
  const auto& row = committed.value();
  steps_.step_times_s.push_back(seconds(now - began_));
  if (steps_.step_times_s.size() > kStepTimes) steps_.step_times_s.pop_front();
  out_.push_back(PersistCommit{row});
  send_to_crew(to_worker(row));
  for (auto* member : present) {
    member->holding->set_applied(steps_.committed);
    member->holding->set_revision(steps_.state_revision);
  }
  const int64_t every = rules_.config.checkpoint.every;
  if (every > 0 && steps_.committed % every == 0) saving_.due = true;
  phase_ = Phase::kIdle;
  if (row.apply) return wear_off(blame_);
  log("skipped", fmt::format("step {}: {}", steps_.committed, row.why));
  if (const auto why = too_many_skipped(steps_, rules_)) {
    if (!rules_.open) return finish(true, *why);
    paused_ = true;
    out_.push_back(PersistPaused{true});
    log("paused", fmt::format("{}; `thinpipe resume` goes on without that", *why));
  }
  blame(pick(behind), row.why, now);
}

void CoordinatorCore::end_evaluation() {
  const auto evaluation = finish_evaluation(steps_, rules_);
  out_.push_back(evaluation);
  log("evaluated", fmt::format("step {}: validation loss {:.4f} on {} sequences", evaluation.step, evaluation.loss,
                               rules_.windows_after(evaluation.step)));
  phase_ = Phase::kIdle;
}

std::optional<std::string> CoordinatorCore::better_path_known(TimePoint now) {
  auto better = better_path(paths_, crew(), now);
  std::move(better.probes.begin(), better.probes.end(), std::back_inserter(out_));
  return better.decided ? std::optional(better.why) : std::nullopt;
}

// Ends the epoch. Sends nothing to the workers: the next Form or a broken link wakes them.
void CoordinatorCore::gather(std::string kind, const std::string& why) {
  if (done()) return;
  phase_ = Phase::kGathering;
  forget_reports(steps_);
  log(std::move(kind), fmt::format("step {}: {}", steps_.committed + 1, why));
}

void CoordinatorCore::abort(const std::string& why) { gather("aborted", why); }

void CoordinatorCore::finish(bool failed, const std::string& reason) {
  if (done()) return;
  phase_ = Phase::kDone;
  const bool complete = steps_.committed == rules_.steps() && has_final_loss();
  resumable_ = rules_.open && stop_requested_ && !failed && !complete;
  log(failed ? "failed" : "done", reason);
  for (const auto& [peer, member] : roster_.members) send(member, stop_message(why_, resumable_));
  out_.push_back(Finish{failed, why_});
}

// ---- effects ----

void CoordinatorCore::send(const Member& member, control::ToWorker message) {
  if (member.session) out_.push_back(SendTo{*member.session, std::move(message)});
}

void CoordinatorCore::send_to_crew(const control::ToWorker& message) {
  for (const auto* member : crew()) send(*member, message);
}

void CoordinatorCore::refuse(SessionId session, const std::string& who, const std::string& reason,
                             Duration retry_after) {
  control::ToWorker message;
  message.mutable_refuse()->set_reason(reason);
  message.mutable_refuse()->set_retry_after_s(seconds(retry_after));
  out_.push_back(SendTo{session, std::move(message)});
  log("refused", fmt::format("{}: {}", who, reason));
}

Effects CoordinatorCore::take_effects() {
  for (auto& effect : out_) {
    if (auto* one = std::get_if<SendTo>(&effect)) one->message.set_revision(steps_.revision);
  }
  return std::exchange(out_, {});
}

// Part of the text may come from a worker.
void CoordinatorCore::log(std::string kind, const std::string& text) {
  why_ = one_line(text);
  out_.push_back(LogEvent{std::move(kind), why_});
}

}  // namespace thinpipe
