// Who takes part in a run: decides whom to admit, who has lost its place, who may leave, and who gets which seat. A
// value and free functions; the core (coordinator_core.h) passes in the time and acts on the answers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "proto/control.pb.h"
#include "run/core/effects.h"
#include "run/core/pulse.h"
#include "run/core/run_rules.h"

namespace thinpipe {

// A peer that is connected, or that holds a seat and may come back before its lease ends.
struct Member {
  std::string peer;
  std::string incarnation;             // which process of the peer; empty: a restarted coordinator has not seen it yet
  std::vector<std::string> addresses;  // where neighbours may dial it
  control::Machine machine;
  std::optional<SessionId> session;  // nullopt: its stream has ended and the lease runs
  TimePoint heard{};                 // the lease counts from here
  Pulse pulse;
  int64_t arrival = 0;  // numbers processes in order of arrival
  bool leaving = false;
  std::optional<Seat> seat;
  std::optional<control::Holding> holding;  // the state that it has, as far as we know
};

struct Roster {
  std::map<std::string, Member> members;     // by peer
  std::set<std::string> revoked;             // peers that were kicked
  std::map<Seat, std::string> last_holders;  // who had each seat's state last
  int64_t arrivals = 0;
};

// "stage 2 (alice)", or "alice" if it has no seat.
std::string name_of(const Member& member);
control::Seat seat_message(Seat seat);

// Null if there is none.
Member* of_session(Roster& roster, SessionId session);
const Member* of_process(const Roster& roster, const std::string& incarnation);
const Member* holder_of(const Roster& roster, Seat seat);
// The holders of all seats, in the order of the seats. Empty unless every seat has one that is connected.
std::vector<Member*> crew_of(Roster& roster, const std::vector<Seat>& seats);
// True if every seat has a holder, connected or not.
bool every_seat_is_held(const Roster& roster, const std::vector<Seat>& seats);
bool a_holder_is_leaving(const Roster& roster);

// Says why a worker with that protocol version cannot take part.
std::string why_other_protocol(uint32_t protocol);
// Says why a worker with this hello cannot take part; nullopt: it can.
// The peer that a person means by a name or by its beginning: real names carry a suffix. An error says that nobody has
// this name, or lists those who might be meant.
Result<std::string> peer_meant(const std::string& given, const std::set<std::string>& names);

std::optional<std::string> why_refused(const Roster& roster, const control::Hello& hello);
// Copies the hello into `member`, the peer's entry in the roster: empty, or what was known about the peer. A new
// process of a peer keeps the seat.
void admit(Roster& roster, Member& member, SessionId session, const control::Hello& hello, const RunRules& rules,
           TimePoint now);

// A member that has to go, and one sentence that says why.
struct Departure {
  std::string peer;
  std::string why;
};
// Returns the members that were silent for longer than the lease.
std::vector<Departure> expired(const Roster& roster, const RunRules& rules, TimePoint now);
// Returns the connected members that were silent for longer than their line explains: their connections count as
// broken.
std::vector<Departure> gone_quiet(const Roster& roster, const RunRules& rules, TimePoint now);
// Returns the leaving members that may go now. One with a seat stays while it is connected and needed: until its state
// is in a checkpoint, or while an epoch counts on it.
std::vector<Departure> free_to_leave(const Roster& roster, bool seats_are_needed);

// Who gets which seat.
struct Seating {
  struct Given {
    std::string peer;
    Seat seat;
    std::string why;
  };
  std::vector<Given> given;
  std::vector<std::string> displaced;  // peers that lose a seat, without its state, to the worker that has the state
  std::vector<int64_t> cuts;           // blocks per stage, decided now and final; empty: not decided
  std::string why;                     // why these cuts, or why somebody waits; empty: nobody waits for a free seat
};
// Gives a seat to the worker that still holds its state, and a free seat to the one that has waited longest and has
// enough memory. With pipeline.auto_cuts nobody gets a seat until there is a machine for each; then place() decides.
Seating decide_seats(const Roster& roster, const RunRules& rules);

// The units of the model that a seat's holder holds, and those that it saves. Empty until the cuts are decided.
std::vector<std::string> units_of(const RunRules& rules, Seat seat);
std::vector<std::string> units_saved_by(const RunRules& rules, Seat seat);

void describe_members(const Roster& roster, TimePoint now, control::RunStatus& status);

}  // namespace thinpipe
