// Who is behind repeated trouble in an open run. A fault counts against everybody who may have caused it, and committed
// steps wear faults off. Whoever has too many faults is sent away for a while: nobody can end the run, and the run goes
// on without them. A value and free functions; the core (coordinator_core.h) passes in the time and acts on the
// answers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace thinpipe {

struct Blame {
  // One fault in five steps is more than a healthy machine has.
  static constexpr int64_t kStepsPerFault = 5;
  static constexpr Duration kFirstExile = std::chrono::minutes(1);
  static constexpr Duration kLongestExile = std::chrono::hours(1);
  // More connections in a minute than a machine with a bad line makes.
  static constexpr int64_t kMostHellos = 60;

  struct Record {
    int64_t points = 0;  // kStepsPerFault for each fault, minus one for each committed step
    int64_t exiles = 0;
    std::optional<TimePoint> back_at;  // sent away until then
    TimePoint minute{};                // hellos are counted from here
    int64_t hellos = 0;
  };
  std::map<std::string, Record> records;  // by peer
};

// Counts a fault against each of the peers. Returns those that have `most` faults now.
std::vector<std::string> count_fault(Blame& blame, const std::vector<std::string>& peers, int64_t most);
// A step was committed.
void wear_off(Blame& blame);
// Sends the peer away: for a minute, and for twice as long each further time. Returns for how long.
Duration send_away(Blame& blame, const std::string& peer, TimePoint now);
// How long the peer still has to stay away; nullopt: it may take part.
std::optional<Duration> time_away(const Blame& blame, const std::string& peer, TimePoint now);
// Counts a connection of the peer. False: it connects far too often.
bool count_hello(Blame& blame, const std::string& peer, TimePoint now);

// The neighbours that do not agree: the numbers of all values that differ from the one before or after them. Values
// travel from stage to stage, so one of two neighbours with different values has changed it.
std::vector<size_t> disagreeing(const std::vector<std::string>& values);

}  // namespace thinpipe
