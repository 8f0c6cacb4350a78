// Which way the link between two neighbours goes: the lower stage dials the upper one, the upper dials the lower, or
// both dial the coordinator, which relays. Knowledge comes from probes: every worker is asked whether it can reach its
// neighbour, once, and again from time to time where the answer was no. Pure: the core (coordinator_core.h) passes the
// time in and sends the probes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"

namespace thinpipe {

enum class PathWay { kForward, kReverse, kRelay };

struct PathChoice {
  PathWay way = PathWay::kRelay;
  std::string address;  // to dial; none when relayed
  std::optional<control::PathFacts> facts;
};

// Processes are named by their incarnations: what one could reach says nothing about the next one on another machine.
struct PathProbe {
  std::string from, to;
};

class PathBook {
 public:
  // An answer is waited for so long; an unreachable neighbour is tried again after so long.
  static constexpr Duration kPatience = std::chrono::seconds(6);
  static constexpr Duration kTryAgain = std::chrono::seconds(30);

  // The way from `lower` to `upper`; none while an answer may still come. Probes that should be sent are appended.
  std::optional<PathChoice> choose(const std::string& lower, const std::string& upper, TimePoint now,
                                   std::vector<PathProbe>& probes);

  // address: where `to` was reached; empty: nowhere.
  void answer(const std::string& from, const std::string& to, const std::string& address,
              const control::PathFacts& facts);
  // Of the link from lower to upper when it is relayed, as the end that dialled through the relay measured it.
  void measured_relay(const std::string& lower, const std::string& upper, const control::PathFacts& facts);
  // What was known of the pair, either way: a link that should have worked did not.
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

}  // namespace thinpipe
