// How neighbouring stages reach each other: decides whether the lower stage dials the upper one, the upper dials the
// lower, or both dial the coordinator, which relays. Probes find this out: every worker is asked once whether it can
// reach its neighbour, and again from time to time if the answer was no. A value and free functions; the core
// (coordinator_core.h) passes the time in and sends the probes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"
#include "run/core/roster.h"

namespace thinpipe {

enum class PathWay { kForward, kReverse, kRelay };

struct PathChoice {
  PathWay way = PathWay::kRelay;
  std::string address;  // to dial; empty when relayed
  std::optional<control::PathFacts> facts;
};

// Processes are named by their incarnations, because a peer's next process may run on another machine.
struct PathProbe {
  std::string from, to;
};

// Who can reach whom, as far as probes have shown.
class PathBook {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(6);   // how long to wait for an answer
  static constexpr Duration kTryAgain = std::chrono::seconds(30);  // when to ask again after a no

  // Returns the path from `lower` to `upper`; nullopt while an answer may still come. Appends the probes to send.
  std::optional<PathChoice> choose(const std::string& lower, const std::string& upper, TimePoint now,
                                   std::vector<PathProbe>& probes);

  // address: where `to` was reached; empty: nowhere.
  void answer(const std::string& from, const std::string& to, const std::string& address,
              const control::PathFacts& facts);
  // Notes what the lower end measured on a relayed link.
  void measured_relay(const std::string& lower, const std::string& upper, const control::PathFacts& facts);
  // Forgets what is known about the pair, both ways, after a link that should have worked did not.
  void forget(const std::string& one, const std::string& other);
  void forget_process(const std::string& process);

 private:
  struct Answer {
    TimePoint asked{};
    bool pending = true;
    std::string address;
    control::PathFacts facts;

    bool reached() const { return !address.empty(); }
  };
  using Pair = std::pair<std::string, std::string>;  // from, to

  const Answer& ask(const Pair& pair, TimePoint now, std::vector<PathProbe>& probes);

  std::map<Pair, Answer> answers_;
  std::map<Pair, control::PathFacts> relayed_;
};

struct Paths {
  PathBook book;
  std::vector<PathChoice> chosen;  // for the current epoch, by boundary
};

// What to do about the links of a crew.
struct PathDecision {
  bool decided = false;  // choose_paths: every path is known. better_path: a relayed pair no longer needs the relay
  Effects probes;        // to send now
  std::string why;
};
// Chooses the paths of a new epoch. `crew` is in the order of the stages.
PathDecision choose_paths(Paths& paths, const std::vector<Member*>& crew, TimePoint now);
// Whether a new epoch would get rid of a relay. Asks the relayed pairs again from time to time.
PathDecision better_path(Paths& paths, const std::vector<Member*>& crew, TimePoint now);

// Notes a worker's answer to a probe. An address that the other worker did not announce counts as a no.
void note_probed(Paths& paths, const Member& from, const Member& to, const control::Probed& probed);
// Notes what a stage measured on its relayed link to the next stage. Returns whether that is new.
bool note_measured(Paths& paths, const std::vector<Member*>& crew, int64_t stage, const control::PathFacts& facts);

// How a stage reaches its neighbour `other` across a boundary. is_next: `other` is the upper one.
control::Neighbour neighbour_at(const Paths& paths, size_t boundary, const Member& other, bool is_next);
// Ok if that peer may open that end of a tunnel. `rightful` holds that end's stage; null: nobody does.
Status check_tunnel(const Paths& paths, int64_t boundary, const Member* rightful, const std::string& peer);

// One sentence about the path across a boundary.
std::string describe_path(const Paths& paths, size_t boundary);
void describe_links(const Paths& paths, control::RunStatus& status);
// How long a message of that size takes one way on the slowest path; 0 if it is not worth covering.
double slowest_hop_s(const Paths& paths, uint64_t packet_bytes);

}  // namespace thinpipe
