// What others ask the coordinator's core; no answer changes it.
#include <fmt/format.h>

#include <algorithm>

#include "run/core/coordinator_core.h"

namespace thinpipe {
namespace {

bool contains(const std::vector<std::string>& units, const std::string& unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

}  // namespace

std::optional<Seat> CoordinatorCore::seat_of(const std::string& peer) const {
  const auto found = roster_.members.find(peer);
  return found == roster_.members.end() ? std::nullopt : found->second.seat;
}

bool CoordinatorCore::holds_unit(const std::string& peer, const std::string& unit) const {
  const auto seat = seat_of(peer);
  return seat && contains(units_of(rules_, *seat), unit);
}

bool CoordinatorCore::saves_unit(const std::string& peer, const std::string& unit) const {
  const auto seat = seat_of(peer);
  return seat && contains(units_saved_by(rules_, *seat), unit);
}

bool CoordinatorCore::wants(const control::StateFile& file) const {
  return saving_.step == file.step() && file.generation() == steps_.generation &&
         !saving_.arrived.contains(file.unit());
}

Status CoordinatorCore::may_tunnel(const std::string& peer, int64_t boundary, uint64_t epoch, bool dials) const {
  if (epoch != steps_.epoch) {
    return Error{fmt::format("the tunnel is for epoch {} and the run is at epoch {}", epoch, steps_.epoch)};
  }
  return check_tunnel(paths_, boundary, holder_of(roster_, {.stage = dials ? boundary : boundary + 1}), peer);
}

CoordinatorCore::Offer CoordinatorCore::offer() const {
  for (const Seat seat : seats_) {
    if (holder_of(roster_, seat) != nullptr) continue;
    Offer offer{seat, fmt::format("stage {}: nobody has it", seat.stage), 0};
    for (const auto& file : files_of(saving_, units_of(rules_, seat))) offer.state_bytes += file.bytes();
    return offer;
  }
  return {std::nullopt, "every stage has its worker: you would wait until one is free", 0};
}

void CoordinatorCore::describe(control::RunStatus& status, TimePoint now) const {
  static constexpr const char* kNames[] = {"gathering", "forming", "idle", "running", "evaluating", "done"};
  status.set_run(rules_.run);
  status.set_phase(phase_ == Phase::kIdle && paused_ ? "paused" : kNames[static_cast<int>(phase_)]);
  status.set_why(why_);
  status.set_epoch(steps_.epoch);
  status.set_step(steps_.committed);
  status.set_steps(rules_.steps());
  status.set_loss(steps_.last_commit ? steps_.last_commit->loss : 0);
  status.set_step_bytes(steps_.step_bytes);
  status.set_manifest_step(saving_.manifest_step);
  status.set_paused(paused_);
  status.set_validation_loss(steps_.final_loss ? *steps_.final_loss : steps_.validation_loss.value_or(0));
  status.set_wait_share(steps_.wait_share);
  if (phase_ == Phase::kEvaluating) {
    status.set_windows(rules_.windows_after(steps_.committed));
    status.set_windows_done(steps_.windows_done);
  }
  describe_members(roster_, now, status);
  describe_links(paths_, status);
}

}  // namespace thinpipe
