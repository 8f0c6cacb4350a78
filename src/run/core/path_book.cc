#include "run/core/path_book.h"

#include <algorithm>

namespace thinpipe {

const PathBook::Answer& PathBook::ask(const Pair& pair, TimePoint now, std::vector<PathProbe>& probes) {
  const auto [found, is_new] = answers_.try_emplace(pair);
  Answer& answer = found->second;
  if (is_new || (!answer.reached() && now - answer.asked >= kTryAgain)) {
    answer.asked = now;
    // A second try does not hold anything up: until it is answered, the first answer stands.
    if (is_new) answer.pending = true;
    probes.push_back({pair.first, pair.second});
  }
  if (answer.pending && now - answer.asked >= kPatience) answer.pending = false;
  return answer;
}

std::optional<PathChoice> PathBook::choose(const std::string& lower, const std::string& upper, TimePoint now,
                                           std::vector<PathProbe>& probes) {
  const Answer& forward = ask({lower, upper}, now, probes);
  const Answer& reverse = ask({upper, lower}, now, probes);
  if (forward.reached()) return PathChoice{PathWay::kForward, forward.address, forward.facts};
  if (forward.pending) return std::nullopt;
  if (reverse.reached()) return PathChoice{PathWay::kReverse, reverse.address, reverse.facts};
  if (reverse.pending) return std::nullopt;
  PathChoice relay;
  if (const auto found = relayed_.find({lower, upper}); found != relayed_.end()) relay.facts = found->second;
  return relay;
}

void PathBook::answer(const std::string& from, const std::string& to, const std::string& address,
                      const control::PathFacts& facts) {
  const auto found = answers_.find({from, to});
  if (found == answers_.end()) return;  // nobody asked
  found->second.pending = false;
  found->second.address = address;
  found->second.facts = facts;
}

void PathBook::measured_relay(const std::string& lower, const std::string& upper, const control::PathFacts& facts) {
  relayed_[{lower, upper}] = facts;
}

void PathBook::forget(const std::string& one, const std::string& other) {
  for (const auto& pair : {Pair{one, other}, Pair{other, one}}) {
    answers_.erase(pair);
    relayed_.erase(pair);
  }
}

void PathBook::forget_process(const std::string& process) {
  const auto concerns = [&](const auto& entry) {
    return entry.first.first == process || entry.first.second == process;
  };
  std::erase_if(answers_, concerns);
  std::erase_if(relayed_, concerns);
}

}  // namespace thinpipe
