#include "run/core/roster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/line.h"
#include "config/model_spec.h"
#include "net/addresses.h"

namespace thinpipe {
namespace {

constexpr int kMostAddresses = 16;  // per worker
constexpr size_t kMaxPeerBytes = 200;

template <class Members, class Wanted>
auto find_member(Members& members, Wanted wanted) -> decltype(&members.begin()->second) {
  for (auto& [peer, member] : members) {
    if (wanted(member)) return &member;
  }
  return nullptr;
}

// In order of arrival.
std::vector<const Member*> by_arrival(const Roster& roster, bool (*wanted)(const Member&)) {
  std::vector<const Member*> found;
  for (const auto& [peer, member] : roster.members) {
    if (member.session && !member.leaving && wanted(member)) found.push_back(&member);
  }
  std::sort(found.begin(), found.end(), [](const auto* a, const auto* b) { return a->arrival < b->arrival; });
  return found;
}

// Decides the cuts by the machines, once, when there is a machine for every seat.
Seating place_machines(const Roster& roster, const RunRules& rules) {
  std::vector<Machine> machines;
  for (const auto* member : by_arrival(roster, [](const Member&) { return true; })) {
    const auto& measured = member->machine;
    machines.push_back({member->peer, measured.block_s(), measured.ends_s(), measured.memory_bytes()});
  }
  const auto seats = rules.seats();
  if (machines.size() < seats.size()) return {};
  const auto placement = place(rules.config, rules.vocab, machines);
  if (!placement) return {.why = placement.error().message};  // somebody else may come
  Seating seating{.cuts = placement.value().cuts, .why = placement.value().why};
  for (size_t i = 0; i < seats.size(); ++i) seating.given.push_back({placement.value().peers.at(i), seats[i], ""});
  return seating;
}

}  // namespace

std::string name_of(const Member& member) {
  return member.seat ? fmt::format("stage {} ({})", member.seat->stage, member.peer) : member.peer;
}

control::Seat seat_message(Seat seat) {
  control::Seat message;
  message.set_stage(seat.stage);
  message.set_replica(seat.replica);
  return message;
}

Member* of_session(Roster& roster, SessionId session) {
  return find_member(roster.members, [&](const Member& member) { return member.session == session; });
}

const Member* of_process(const Roster& roster, const std::string& incarnation) {
  return find_member(roster.members, [&](const Member& member) { return member.incarnation == incarnation; });
}

const Member* holder_of(const Roster& roster, Seat seat) {
  return find_member(roster.members, [&](const Member& member) { return member.seat == seat; });
}

std::vector<Member*> crew_of(Roster& roster, const std::vector<Seat>& seats) {
  std::vector<Member*> crew;
  for (auto& [peer, member] : roster.members) {
    if (member.seat && member.session) crew.push_back(&member);
  }
  if (crew.size() != seats.size()) return {};
  std::sort(crew.begin(), crew.end(), [](const auto* a, const auto* b) { return *a->seat < *b->seat; });
  return crew;
}

bool every_seat_is_held(const Roster& roster, const std::vector<Seat>& seats) {
  return std::all_of(seats.begin(), seats.end(), [&](Seat seat) { return holder_of(roster, seat) != nullptr; });
}

bool a_holder_is_leaving(const Roster& roster) {
  return std::any_of(roster.members.begin(), roster.members.end(),
                     [](const auto& entry) { return entry.second.leaving && entry.second.seat; });
}

std::string why_other_protocol(uint32_t protocol) {
  return fmt::format("speaks protocol {} and this run needs {}; install the same version of thinpipe on both sides",
                     protocol, kControlProtocol);
}

Result<std::string> peer_meant(const std::string& given, const std::set<std::string>& names) {
  if (names.contains(given)) return given;
  std::vector<std::string> meant;
  for (const auto& start : {given + "-", given}) {
    if (given.empty() || !meant.empty()) break;
    std::copy_if(names.begin(), names.end(), std::back_inserter(meant),
                 [&](const std::string& name) { return name.starts_with(start); });
  }
  if (meant.size() == 1) return meant.front();
  if (!meant.empty()) return Error{fmt::format("{} may be {}: give the whole name", given, fmt::join(meant, " or "))};
  return Error{
      fmt::format("there is nobody called {}; there {}", one_line(given),
                  names.empty() ? std::string("is nobody at all") : fmt::format("are {}", fmt::join(names, ", ")))};
}

std::optional<std::string> why_refused(const Roster& roster, const control::Hello& hello) {
  if (hello.protocol() != kControlProtocol) return why_other_protocol(hello.protocol());
  if (hello.peer().empty() || hello.peer().size() > kMaxPeerBytes || hello.incarnation().empty()) {
    return fmt::format("a worker needs a name of 1 to {} characters and a process id", kMaxPeerBytes);
  }
  if (roster.revoked.contains(hello.peer())) {
    return "was removed from this run by its organiser";
  }
  return std::nullopt;
}

void admit(Roster& roster, Member& member, SessionId session, const control::Hello& hello, const RunRules& rules,
           TimePoint now) {
  if (member.incarnation != hello.incarnation()) {  // a new process replaces the old one
    member = Member{.arrival = roster.arrivals++, .seat = member.seat};
  }
  member.peer = hello.peer();
  member.incarnation = hello.incarnation();
  member.addresses.clear();
  for (const auto& address : hello.data_addresses()) {
    if (member.addresses.size() < kMostAddresses && check_address(address).ok()) member.addresses.push_back(address);
  }
  member.machine = hello.machine();
  member.session = session;
  if (member.pulse.messages > 0) note_gap(member.pulse, now - member.heard);  // it is back: its line may be slow
  member.heard = now;
  member.leaving = member.leaving || hello.leaving();
  member.holding.reset();
  if (hello.has_holding() && hello.holding().run() == rules.run) member.holding = hello.holding();
}

std::vector<Departure> expired(const Roster& roster, const RunRules& rules, TimePoint now) {
  const Duration lease = std::chrono::seconds(rules.config.cluster.lease_s);
  std::vector<Departure> lost;
  for (const auto& [peer, member] : roster.members) {
    const Duration silent = now - member.heard;
    if (silent <= lease) continue;
    lost.push_back(
        {peer, fmt::format("{} was silent for {:.0f} s and has lost its place", name_of(member), seconds(silent))});
  }
  return lost;
}

std::vector<Departure> gone_quiet(const Roster& roster, const RunRules& rules, TimePoint now) {
  const Duration lease = std::chrono::seconds(rules.config.cluster.lease_s);
  std::vector<Departure> quiet;
  for (const auto& [peer, member] : roster.members) {
    const Duration silent = now - member.heard;
    if (!member.session || silent <= patience_with(member.pulse, lease)) continue;
    quiet.push_back({peer, fmt::format("{} has been silent for {:.1f} s; its line was never silent for longer than "
                                       "{:.1f} s",
                                       name_of(member), seconds(silent), seconds(member.pulse.longest_gap))});
  }
  return quiet;
}

std::vector<Departure> free_to_leave(const Roster& roster, bool seats_are_needed) {
  std::vector<Departure> leavers;
  for (const auto& [peer, member] : roster.members) {
    const bool kept = member.session && member.seat && seats_are_needed;
    if (member.leaving && !kept) leavers.push_back({peer, fmt::format("{} has left", name_of(member))});
  }
  return leavers;
}

Seating decide_seats(const Roster& roster, const RunRules& rules) {
  if (rules.config.pipeline.auto_cuts) return place_machines(roster, rules);
  auto free = rules.seats();
  std::erase_if(free, [&](Seat seat) { return holder_of(roster, seat) != nullptr; });
  auto waiting = by_arrival(roster, [](const Member& member) { return !member.seat; });
  Seating seating;
  const auto give = [&](const Member& member, Seat seat, std::string why) {
    std::erase(free, seat);
    seating.given.push_back({member.peer, seat, std::move(why)});
  };
  std::erase_if(waiting, [&](const Member* member) {
    if (!member->holding) return false;
    const Seat held{member->holding->seat().stage(), member->holding->seat().replica()};
    if (const auto* holder = holder_of(roster, held)) {
      if (holder->holding) return false;
      seating.displaced.push_back(holder->peer);
    }
    give(*member, held, fmt::format("stage {}: it holds its state", held.stage));
    return true;
  });
  for (const auto* member : waiting) {
    if (free.empty()) break;
    const auto choice = choose_seat(rules.config, rules.vocab, free, member->machine.memory_bytes());
    if (choice.seat) {
      give(*member, *choice.seat, choice.why);
    } else {
      seating.why = fmt::format("{} {}", member->peer, choice.why);
    }
  }
  return seating;
}

std::vector<std::string> units_of(const RunRules& rules, Seat seat) {
  if (rules.config.pipeline.auto_cuts) return {};
  return model_units(rules.config.model, blocks_of_stage(rules.config, seat.stage));
}

std::vector<std::string> units_saved_by(const RunRules& rules, Seat seat) {
  if (rules.config.pipeline.auto_cuts || seat.replica != 0) return {};
  return saved_units(rules.config.model, blocks_of_stage(rules.config, seat.stage));
}

void describe_members(const Roster& roster, TimePoint now, control::RunStatus& status) {
  for (const auto& [peer, member] : roster.members) {
    auto& one = *status.add_members();
    one.set_peer(peer);
    if (member.seat) *one.mutable_seat() = seat_message(*member.seat);
    one.set_connected(member.session.has_value());
    one.set_address(member.addresses.empty() ? "" : member.addresses.front());
    one.set_heard_s_ago(seconds(now - member.heard));
  }
}

}  // namespace thinpipe
