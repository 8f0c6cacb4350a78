#include "run/core/paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/say.h"
#include "base/units.h"

namespace thinpipe {
namespace {

// Workers measured the rate, so it may be any number.
// Asks the book about two neighbours. Turns the probes that it wants into messages.
std::optional<PathChoice> look_up(PathBook& book, const Member& lower, const Member& upper, TimePoint now,
                                  Effects& probes) {
  std::vector<PathProbe> wanted;
  auto path = book.choose(lower.incarnation, upper.incarnation, now, wanted);
  for (const auto& probe : wanted) {
    const bool upwards = probe.from == lower.incarnation;
    const auto& to = upwards ? upper : lower;
    control::ToWorker message;
    message.mutable_probe()->set_peer(to.peer);
    message.mutable_probe()->set_incarnation(to.incarnation);
    for (const auto& address : to.addresses) message.mutable_probe()->add_addresses(address);
    probes.push_back(SendTo{*(upwards ? lower : upper).session, std::move(message)});
  }
  return path;
}

}  // namespace

// ---- the book ----

const PathBook::Answer& PathBook::ask(const Pair& pair, TimePoint now, std::vector<PathProbe>& probes) {
  const auto [found, is_new] = answers_.try_emplace(pair);
  Answer& answer = found->second;
  if (is_new || (!answer.reached() && now - answer.asked >= kTryAgain)) {
    answer.asked = now;
    // Nobody waits for a second probe: the first answer stands until the second arrives.
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

// ---- decisions ----

PathDecision choose_paths(Paths& paths, const std::vector<Member*>& crew, TimePoint now) {
  PathDecision decision;
  std::vector<PathChoice> chosen;
  for (size_t i = 0; i + 1 < crew.size(); ++i) {
    const auto path = look_up(paths.book, *crew[i], *crew[i + 1], now, decision.probes);
    if (path) chosen.push_back(*path);
  }
  decision.decided = chosen.size() + 1 == crew.size();
  decision.why = decision.decided ? "all paths are known" : "finding out how the stages can reach each other";
  if (decision.decided) paths.chosen = std::move(chosen);
  return decision;
}

PathDecision better_path(Paths& paths, const std::vector<Member*>& crew, TimePoint now) {
  PathDecision decision;
  for (size_t i = 0; i + 1 < crew.size() && i < paths.chosen.size(); ++i) {
    if (paths.chosen[i].way != PathWay::kRelay) continue;
    const auto path = look_up(paths.book, *crew[i], *crew[i + 1], now, decision.probes);
    if (!path || path->way == PathWay::kRelay) continue;
    decision.decided = true;
    decision.why = fmt::format("stages {} and {} were relayed and can reach each other now", i, i + 1);
  }
  return decision;
}

void note_probed(Paths& paths, const Member& from, const Member& to, const control::Probed& probed) {
  const bool known = std::find(to.addresses.begin(), to.addresses.end(), probed.address()) != to.addresses.end();
  paths.book.answer(from.incarnation, to.incarnation, known ? probed.address() : "", probed.facts());
}

bool note_measured(Paths& paths, const std::vector<Member*>& crew, int64_t stage, const control::PathFacts& facts) {
  const auto boundary = static_cast<size_t>(stage);
  if (boundary >= paths.chosen.size() || paths.chosen[boundary].way != PathWay::kRelay || crew.empty()) return false;
  paths.chosen[boundary].facts = facts;
  paths.book.measured_relay(crew[boundary]->incarnation, crew[boundary + 1]->incarnation, facts);
  return true;
}

control::Neighbour neighbour_at(const Paths& paths, size_t boundary, const Member& other, bool is_next) {
  const auto& path = paths.chosen.at(boundary);
  control::Neighbour neighbour;
  neighbour.set_peer(other.peer);
  if (path.way == PathWay::kRelay) {
    neighbour.set_way(is_next ? control::Neighbour::TUNNEL_DIAL : control::Neighbour::TUNNEL_AWAIT);
    neighbour.set_measure(is_next && !path.facts);
  } else if ((path.way == PathWay::kForward) == is_next) {
    neighbour.set_way(control::Neighbour::DIAL);
    neighbour.set_address(path.address);
  } else {
    neighbour.set_way(control::Neighbour::AWAIT);
  }
  return neighbour;
}

Status check_tunnel(const Paths& paths, int64_t boundary, const Member* rightful, const std::string& peer) {
  if (boundary < 0 || static_cast<size_t>(boundary) >= paths.chosen.size()) {
    return Error{fmt::format("there is no boundary {}", boundary)};
  }
  if (rightful == nullptr || rightful->peer != peer) {
    return Error{fmt::format("that end of boundary {} belongs to {}, not to {}", boundary,
                             rightful == nullptr ? "nobody" : rightful->peer, peer)};
  }
  if (paths.chosen[static_cast<size_t>(boundary)].way != PathWay::kRelay) {
    return Error{fmt::format("boundary {} is not relayed", boundary)};
  }
  return {};
}

// ---- words and numbers ----

std::string describe_path(const Paths& paths, size_t boundary) {
  const auto& path = paths.chosen.at(boundary);
  std::string text = fmt::format("stages {} and {}: ", boundary, boundary + 1);
  if (path.way == PathWay::kRelay) {
    text += "relayed, because neither can dial the other";
  } else {
    text +=
        fmt::format("direct, stage {} dials {}", path.way == PathWay::kForward ? boundary : boundary + 1, path.address);
  }
  if (path.facts) {
    text += fmt::format("; round trip {:.1f} ms, {} there, {} back", 1e3 * path.facts->round_trip_s(),
                        rate_text(path.facts->up_bits_per_s()), rate_text(path.facts->down_bits_per_s()));
  }
  return text;
}

void describe_links(const Paths& paths, control::RunStatus& status) {
  static constexpr const char* kWays[] = {"direct", "direct, dialled from above", "relayed"};
  for (size_t boundary = 0; boundary < paths.chosen.size(); ++boundary) {
    const auto& path = paths.chosen[boundary];
    auto& link = *status.add_links();
    link.set_boundary(static_cast<int64_t>(boundary));
    link.set_way(kWays[static_cast<int>(path.way)]);
    if (path.facts) *link.mutable_facts() = *path.facts;
  }
}

// Facts may be any number, because workers measured them. A hop that is too long only costs memory. A loopback's
// fraction of a millisecond is not worth a microbatch.
double slowest_hop_s(const Paths& paths, uint64_t packet_bytes) {
  constexpr double kWorthCovering_s = 1e-3, kLongest_s = 10;
  double slowest = 0;
  for (const auto& path : paths.chosen) {
    if (!path.facts) continue;
    const double rate = std::min(path.facts->up_bits_per_s(), path.facts->down_bits_per_s());
    const double transfer_s = rate > 0 ? 8.0 * static_cast<double>(packet_bytes) / rate : 0;
    const double hop_s = path.facts->round_trip_s() / 2 + transfer_s;
    if (std::isfinite(hop_s)) slowest = std::max(slowest, hop_s);
  }
  return slowest < kWorthCovering_s ? 0 : std::min(slowest, kLongest_s);
}

}  // namespace thinpipe
