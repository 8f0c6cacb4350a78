// The part of the coordinator's core that decides how neighbours reach each other (path_book.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "run/core/coordinator_core.h"

namespace thinpipe {

bool CoordinatorCore::choose_paths(TimePoint now, Effects& out) {
  const auto stages = by_stage();
  std::vector<PathProbe> probes;
  std::vector<PathChoice> paths;
  for (size_t i = 0; i + 1 < stages.size(); ++i) {
    const auto path = book_.choose(stages[i]->incarnation, stages[i + 1]->incarnation, now, probes);
    if (path) paths.push_back(*path);
  }
  send_probes(probes, out);
  if (paths.size() + 1 < stages.size()) {
    why_ = "finding out how the stages can reach each other";
    return false;
  }
  paths_ = std::move(paths);
  return true;
}

// Only a way without the relay is worth an interruption.
bool CoordinatorCore::better_path_known(TimePoint now, Effects& out) {
  const auto stages = by_stage();
  bool better = false;
  std::vector<PathProbe> probes;
  for (size_t i = 0; i + 1 < stages.size() && i < paths_.size(); ++i) {
    if (paths_[i].way != PathWay::kRelay) continue;
    const auto path = book_.choose(stages[i]->incarnation, stages[i + 1]->incarnation, now, probes);
    better = better || (path && path->way != PathWay::kRelay);
  }
  send_probes(probes, out);
  return better;
}

void CoordinatorCore::send_probes(const std::vector<PathProbe>& probes, Effects& out) {
  const auto process = [&](const std::string& incarnation) -> const Member* {
    for (const auto& [peer, member] : members_) {
      if (member.incarnation == incarnation) return &member;
    }
    return nullptr;
  };
  for (const auto& probe : probes) {
    const auto* from = process(probe.from);
    const auto* to = process(probe.to);
    if (from == nullptr || to == nullptr) continue;
    control::ToWorker message;
    message.mutable_probe()->set_peer(to->peer);
    message.mutable_probe()->set_incarnation(to->incarnation);
    for (const auto& address : to->addresses) message.mutable_probe()->add_addresses(address);
    send(*from, std::move(message), out);
  }
}

// How the holder of a stage is to reach `member` across that boundary; is_next: `member` is the upper one.
control::Neighbour CoordinatorCore::neighbour(const Member& member, size_t boundary, bool is_next) const {
  const auto& path = paths_.at(boundary);
  control::Neighbour neighbour;
  neighbour.set_peer(member.peer);
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

void CoordinatorCore::note_probed(const Member& member, const control::Probed& probed) {
  for (const auto& [peer, other] : members_) {
    if (other.incarnation != probed.incarnation()) continue;
    // An address that nobody announced is no answer.
    const bool known =
        std::find(other.addresses.begin(), other.addresses.end(), probed.address()) != other.addresses.end();
    book_.answer(member.incarnation, other.incarnation, known ? probed.address() : "", probed.facts());
  }
}

void CoordinatorCore::note_paths(Member& member, const control::Formed& formed, Effects& out) {
  const auto boundary = static_cast<size_t>(member.stage);
  if (!formed.has_next() || boundary >= paths_.size() || paths_[boundary].way != PathWay::kRelay) return;
  const auto stages = by_stage();
  if (stages.empty()) return;
  paths_[boundary].facts = formed.next();
  book_.measured_relay(member.incarnation, stages[boundary + 1]->incarnation, formed.next());
  log(out, "path", describe_path(boundary));
}

namespace {

// From a peer: any number.
std::string rate_text(double bits_per_s) {
  return bits_per_s >= 1 && bits_per_s < 1e15 ? format_rate(static_cast<uint64_t>(bits_per_s)) : "an unknown rate";
}

}  // namespace

std::string CoordinatorCore::describe_path(size_t boundary) const {
  const auto& path = paths_.at(boundary);
  std::string text = fmt::format("stages {} and {}: ", boundary, boundary + 1);
  if (path.way == PathWay::kRelay) {
    text += "relayed, for neither can dial the other";
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

// What the slowest path takes for one message, one way. Workers measured it, so it may be any number; too much costs
// memory and no more, and a loopback's fraction of a millisecond is not worth a microbatch.
double CoordinatorCore::measured_hop_s() const {
  constexpr double kWorthCovering_s = 1e-3, kLongest_s = 10;
  double slowest = 0;
  for (const auto& path : paths_) {
    if (!path.facts) continue;
    const double rate = std::min(path.facts->up_bits_per_s(), path.facts->down_bits_per_s());
    const double transfer_s = rate > 0 ? 8.0 * static_cast<double>(rules_.packet_bytes) / rate : 0;
    const double hop_s = path.facts->round_trip_s() / 2 + transfer_s;
    if (std::isfinite(hop_s)) slowest = std::max(slowest, hop_s);
  }
  return slowest < kWorthCovering_s ? 0 : std::min(slowest, kLongest_s);
}

Status CoordinatorCore::may_tunnel(const std::string& peer, int64_t boundary, uint64_t epoch, bool dials) const {
  if (epoch != epoch_) return Error{fmt::format("a tunnel of epoch {}; the run is at epoch {}", epoch, epoch_)};
  if (boundary < 0 || static_cast<size_t>(boundary) >= paths_.size()) {
    return Error{fmt::format("there is no boundary {}", boundary)};
  }
  const auto rightful = holder(dials ? boundary : boundary + 1);
  if (rightful != peer) {
    return Error{fmt::format("that end of boundary {} belongs to {}, not to {}", boundary,
                             rightful.empty() ? "nobody" : rightful, peer)};
  }
  if (paths_[static_cast<size_t>(boundary)].way != PathWay::kRelay) {
    return Error{fmt::format("boundary {} is not relayed", boundary)};
  }
  return {};
}

// Stages cannot be asked who made the first number that is not finite: one that did would not say. Those that received
// one say from whom, and the first to receive it names the sender.
std::string CoordinatorCore::why_skipped(const CommitRow& row, const std::vector<control::Ready>& reports) {
  const auto name = [&](size_t stage) {
    const auto index = static_cast<int64_t>(stage);
    return stage_and_peer(index, holder(index));
  };
  for (size_t i = 1; i < reports.size(); ++i) {
    if (reports[i].nonfinite_from_previous()) return fmt::format("{} sent numbers that are not finite", name(i - 1));
  }
  for (size_t i = reports.size() - 1; i-- > 0;) {
    if (reports[i].nonfinite_from_next()) return fmt::format("{} sent gradients that are not finite", name(i + 1));
  }
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!std::isfinite(reports[i].squared_norm()) || !std::isfinite(reports[i].loss_sum())) {
      return fmt::format("the loss or gradient of {} is not finite", name(i));
    }
  }
  return row.why;
}

}  // namespace thinpipe
