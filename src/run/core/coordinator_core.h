// The coordinator's decisions. No I/O, no clock, no threads: an event goes in with the time, effects come out, and each
// decision has a sentence that says why (docs/control.md). The core owns the state and decides in advance() what comes
// next. Its parts hold the rules:
//
//   roster.h   who takes part and who gets which seat
//   paths.h    how neighbours reach each other
//   steps.h    what comes next, when a step is committed, when to try again
//   saving.h   checkpoints, and what an epoch begins from
//   blame.h    in an open run: who is behind repeated trouble
//   pulse.h    who is silent, and who holds the others up
//
//   gathering -> forming -> idle <-> running | evaluating        any trouble: back to gathering, then a new epoch
//                            idle -> done
//
// The service (coordinator_service.h) calls it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "run/core/blame.h"
#include "run/core/effects.h"
#include "run/core/paths.h"
#include "run/core/roster.h"
#include "run/core/run_rules.h"
#include "run/core/saving.h"
#include "run/core/steps.h"

namespace thinpipe {

// What a restarted coordinator knows from its store and its checkpoints.
struct StoredRun {
  Steps steps;
  Saving saving;
  bool paused = false;
  std::vector<std::string> roster;  // who held each seat, in the order of RunRules::seats(); they may come back
  std::set<std::string> revoked;    // peers
};

class CoordinatorCore {
 public:
  CoordinatorCore(RunRules rules, StoredRun stored, TimePoint now);

  // Events. Each returns what to do.
  Effects message(SessionId session, const control::FromWorker& message, TimePoint now);
  Effects session_ended(SessionId session, TimePoint now);
  Effects tick(TimePoint now);
  Effects file_arrived(const control::StateFile& file, TimePoint now);
  // A file that the peer uploaded is not the state of its unit.
  Effects file_refused(const std::string& peer, const std::string& reason, TimePoint now);
  // The peer has sent messages as fast as they were read, for longer than any honest worker does.
  Effects flooded(SessionId session, const std::string& peer, TimePoint now);
  Effects manifest_written(const std::vector<control::StateFile>& files, TimePoint now);
  Effects manifest_failed(const std::string& reason, TimePoint now);
  Effects control(control::ControlRequest::What what, TimePoint now);
  // The run does not accept that name again, unless it is pardoned.
  Effects kick(const std::string& peer, TimePoint now);
  Effects pardon(const std::string& peer, TimePoint now);
  // The service could not do something (a full disk): the run stops with the reason.
  Effects fail(const std::string& reason);

  void describe(control::RunStatus& status, TimePoint now) const;
  bool done() const { return phase_ == Phase::kDone; }
  int64_t committed() const { return steps_.committed; }
  bool has_final_loss() const { return steps_.final_loss.has_value(); }
  double step_seconds() const { return steps_.step_s; }
  bool is_revoked(const std::string& peer) const { return roster_.revoked.contains(peer); }
  const std::set<std::string>& revoked() const { return roster_.revoked; }
  // The seat that a peer holds in this run, connected or not.
  std::optional<Seat> seat_of(const std::string& peer) const;
  // Whether the peer's stage has that unit of the model, and whether the peer saves it.
  bool holds_unit(const std::string& peer, const std::string& unit) const;
  bool saves_unit(const std::string& peer, const std::string& unit) const;
  // Whether the file belongs to the checkpoint under way. Others are late, and nobody needs them.
  bool wants(const control::StateFile& file) const;
  // Ok if the peer holds that end of the boundary in the current epoch and the link there is relayed.
  Status may_tunnel(const std::string& peer, int64_t boundary, uint64_t epoch, bool dials) const;
  // What a newcomer would get now.
  struct Offer {
    std::optional<Seat> seat;  // nullopt: it would wait
    std::string why;
    uint64_t state_bytes = 0;
  };
  Offer offer() const;

 private:
  enum class Phase { kGathering, kForming, kIdle, kRunning, kEvaluating, kDone };

  // Messages from workers.
  void hello(SessionId session, const control::Hello& hello, TimePoint now);
  void hear(Member& member, const control::FromWorker& message, TimePoint now);
  void formed(Member& member, const control::Formed& formed);
  void ready(Member& member, const control::Ready& ready, TimePoint now);
  void trouble(Member& member, const control::Trouble& trouble, TimePoint now);

  void notice_gap(TimePoint now);
  // Members that can be reached again come one after the other. For a lease, gives up no step whose state may be among
  // what the others hold.
  void wait_for_holders(TimePoint now);

  // Members that go. These functions invalidate references to the members that they remove.
  void release_leavers();
  void expel(const Member& member, const std::string& reason, Duration retry_after = {});
  // Expels the peers for a while. Some may be gone already.
  void send_away(const std::vector<std::string>& peers, const std::string& reason, TimePoint now);
  // In an open run: counts a fault of one of the peers against all of them, and sends those away that have too many.
  void blame(const std::vector<std::string>& peers, const std::string& reason, TimePoint now);
  void drop_silent(TimePoint now);
  // In an open run: breaks the connection of a member that is silent for longer than its line explains.
  void hang_up_on_quiet(TimePoint now);
  // Finds members that live and get nowhere: says so, and later takes their places.
  void watch_progress(TimePoint now);
  void watch_saving(const std::vector<Member*>& crew, TimePoint now);
  bool has_answered(Seat seat) const;
  // Takes the suspects' places, or counts a fault against each if there are several.
  void end_stall(const std::vector<Member*>& crew, const Stall& stall, const char* duty, TimePoint now);
  void remove(const std::string& peer);

  // Decides what comes next and does it. Every event ends with it. Returns all effects of the event.
  Effects advance(TimePoint now);
  bool ready_to_form(TimePoint now);
  // Who of the crew has no state of the committed steps, and what an epoch with this crew would begin with.
  std::vector<bool> restores_of(const std::vector<Member*>& crew) const;
  Beginning beginning_with(const std::vector<Member*>& crew) const;
  // Whether it would give up steps though every missing state may still come: its last holder is not here.
  bool gives_up_too_early(const std::vector<Member*>& crew, TimePoint now) const;
  void give_seats();
  void form(TimePoint now);
  void act_when_idle(TimePoint now);
  void commit(TimePoint now);
  void end_evaluation();
  // Why a new epoch would get rid of a relay; nullopt: it would not. Probes relayed neighbours from time to time.
  std::optional<std::string> better_path_known(TimePoint now);
  void gather(std::string kind, const std::string& why);
  void abort(const std::string& why);
  void finish(bool failed, const std::string& reason);

  std::vector<Member*> crew() { return crew_of(roster_, seats_); }
  control::ToWorker form_message(const std::vector<Member*>& crew, size_t i, bool restore) const;
  void send(const Member& member, control::ToWorker message);
  void send_to_crew(const control::ToWorker& message);
  void refuse(SessionId session, const std::string& who, const std::string& reason, Duration retry_after = {});
  void log(std::string kind, const std::string& text);
  // The effects of the current event. Every message carries the revision.
  Effects take_effects();

  RunRules rules_;
  const std::vector<Seat> seats_;
  const TimePoint start_;
  Phase phase_ = Phase::kGathering;
  std::string why_ = "waiting for workers";  // the last decision
  bool paused_;
  bool stop_requested_ = false;
  bool resumable_ = false;  // when done: others may wait for the next start
  Roster roster_;
  Paths paths_;
  Steps steps_;
  Saving saving_;
  Blame blame_;
  TimePoint last_tick_;
  TimePoint keep_steps_until_{};  // see wait_for_holders
  TimePoint began_{};         // the present phase, if the workers have an order
  TimePoint saving_began_{};  // the checkpoint under way
  Effects out_;               // effects of the current event
};

}  // namespace thinpipe
