// What the items of a plan do to the world.
#include <cerrno>

#include "world.h"

namespace thinpipe::sim {
namespace {

using std::chrono::milliseconds;

constexpr int kMostKicks = 2;
constexpr size_t kMostMembers = 9;
constexpr Duration kSilentBreak = std::chrono::seconds(30);  // until both ends have noticed it

}  // namespace

void World::happen(const PlannedFault& fault) {
  trace("FAULT {}", fault.describe());
  auto& worker = any_worker(fault.who);
  auto& coordinator = *coordinators_[fault.other % coordinators_.size()];
  happen_to_worker(fault, worker);
  happen_to_coordinator(fault, coordinator);
  happen_by_owner(fault, worker);
  happen_to_copies(fault, worker);
}

void World::happen_to_worker(const PlannedFault& fault, SimWorker& worker) {
  auto& other = any_worker(fault.other);
  switch (fault.kind) {
    case FaultKind::kWorkerDies:
      worker.die();
      events_.after(fault.time, [&worker] {
        if (!worker.revoked) worker.start();
      });
      break;
    case FaultKind::kWorkerFreezes:
      worker.freeze(fault.time);
      break;
    case FaultKind::kLineBreaks:
    case FaultKind::kLineHalfOpen: {
      const bool silently = fault.kind == FaultKind::kLineHalfOpen;
      if (worker.line()) break_line(worker.line(), silently);
      worker.trouble_until(now() + (silently ? kSilentBreak : std::chrono::seconds(1)));
      break;
    }
    case FaultKind::kPartition:
      cut_off_[worker.peer()] = now() + fault.time;
      if (worker.line()) break_line(worker.line(), fault.flag);
      worker.trouble_until(now() + fault.time + (fault.flag ? kSilentBreak : Duration{}));
      break;
    case FaultKind::kPeersPartition:
      if (&other == &worker) break;
      peers_cut_off_[std::minmax(worker.peer(), other.peer())] = now() + fault.time;
      worker.trouble_until(now() + fault.time);
      other.trouble_until(now() + fault.time);
      break;
    case FaultKind::kLie: {
      const auto lie = static_cast<Lie>(1 + fault.other % (static_cast<uint64_t>(Lie::kCount) - 1));
      auto& liar = lie == Lie::kClaim ? outsider(worker) : worker;
      liar.set_lie(lie);
      trace("{} lies: {}", liar.peer(), name_of(lie));
      // Some lies are told in a Hello.
      if (fault.flag && liar.line()) break_line(liar.line(), false);
      events_.after(4 * fault.time, [this, &liar] {
        liar.set_lie(Lie::kNone);
        liar.trouble_until(now());  // who is found out is not believed for a while
      });
      break;
    }
    case FaultKind::kLeave:
      worker.leave();
      break;
    default:
      break;
  }
}

SimWorker& World::outsider(SimWorker& preferred) {
  const auto is_one = [](const SimWorker& worker) { return worker.is_alive() && !worker.core()->holding(); };
  if (is_one(preferred)) return preferred;
  for (const auto& worker : workers_) {
    if (is_one(*worker)) return *worker;
  }
  if (workers_.size() < kMostMembers) enrol_worker();
  return *workers_.back();
}

void World::happen_to_coordinator(const PlannedFault& fault, SimCoordinator& coordinator) {
  switch (fault.kind) {
    case FaultKind::kCoordinatorDies:
      coordinator.kill(false);
      break;
    case FaultKind::kPowerLoss:
      coordinator.kill(true);
      break;
    case FaultKind::kCoordinatorFreezes:
      coordinator.freeze(fault.time);
      break;
    case FaultKind::kStrangers:
      storm(coordinator, now() + fault.time, 1 + fault.who % 4);
      break;
    case FaultKind::kDiskFails: {
      if (!coordinator.is_up()) break;
      const int reason = fault.who % 2 == 0 ? EIO : ENOSPC;
      if (!fault.flag) return coordinator.disk().fail_once(reason, fault.who % 3 == 0);
      disk_fault_ = reason;
      coordinator.disk().fail_all(reason);
      events_.after(fault.time, [this, &coordinator] {
        disk_fault_ = 0;
        if (coordinator.is_up()) coordinator.disk().fail_all(0);
      });
      break;
    }
    case FaultKind::kSqliteFails: {
      constexpr SqliteFault kFaults[] = {SqliteFault::kIoError, SqliteFault::kFull, SqliteFault::kShortWrite};
      sqlite_.fail(kFaults[fault.who % 3], fault.flag, fault.other % 40);
      if (fault.flag) events_.after(fault.time, [this] { sqlite_.mend(); });
      break;
    }
    default:
      break;
  }
}

// Strangers of so many networks connect every few milliseconds.
void World::storm(SimCoordinator& coordinator, TimePoint end, uint64_t networks) {
  if (now() >= end) return;
  if (can_call(coordinator)) {
    coordinator.stranger(fmt::format("192.168.0.{}:{}", dice_.below(networks), dice_.below(60000)));
  }
  events_.after(milliseconds(20), [this, &coordinator, end, networks] { storm(coordinator, end, networks); });
}

void World::happen_by_owner(const PlannedFault& fault, SimWorker& worker) {
  auto& coordinator = *coordinators_[served_];
  if (!can_call(coordinator)) return;
  const auto kick = [&](SimWorker& culprit) {
    if (culprit.revoked || kicks_ >= kMostKicks) return;
    ++kicks_;
    trace("the operator kicks {}", culprit.peer());
    culprit.revoked = true;
    coordinator.kick(culprit.peer());
  };
  switch (fault.kind) {
    case FaultKind::kKick:
      kick(worker);
      break;
    case FaultKind::kKickUploader:
      for (auto& one : workers_) {
        if (one->is_uploading()) return kick(*one);
      }
      break;
    case FaultKind::kReturnAfterKick:
      for (auto& one : workers_) {
        if (!coordinator.has_revoked(one->peer())) continue;
        // With its certificate, and with a new one for the same key.
        if (coordinator.join(invites_.back(), "somebody", one->key())) {
          throw Violation(one->peer() + " was removed, and may join");
        }
        one->start();
      }
      break;
    case FaultKind::kPause:
      coordinator.control(fault.flag ? control::ControlRequest::PAUSE : control::ControlRequest::RESUME);
      break;
    case FaultKind::kJoin:
      if (workers_.size() < kMostMembers) enrol_worker();
      break;
    case FaultKind::kClockJumps:
      wall_offset_ += (fault.flag ? 1 : -1) * std::chrono::hours(fault.who % 100);
      break;
    default:
      break;
  }
}

void World::happen_to_copies(const PlannedFault& fault, SimWorker& worker) {
  auto& first = *coordinators_.front();
  switch (fault.kind) {
    case FaultKind::kSecondCoordinator: {
      if (!first.is_up() || disk_fault_ != 0) break;
      sqlite_.become(new_process());
      const auto opened = RunStore::open(first.store_path());
      if (opened) throw Violation("two coordinators serve the same folder");
      break;
    }
    case FaultKind::kBackup:
      if (coordinators_.size() > 1) break;
      coordinators_.push_back(std::make_unique<SimCoordinator>(*this, "B", folder_ / "b"));
      coordinators_.back()->restore_backup_of(first);
      has_backup_ = true;
      break;
    case FaultKind::kRestore:
      if (!has_backup_ || wanted_up_.contains(1)) break;
      wanted_up_.insert(1);
      if (!fault.flag) break;
      first.kill(true);
      wanted_up_.erase(0);
      served_ = 1;
      for (auto& one : workers_) one->route = 1;
      break;
    case FaultKind::kReroute:
      if (!wanted_up_.contains(1) || !wanted_up_.contains(0)) break;
      worker.route = 1 - worker.route;
      worker.trouble_until(now());
      if (worker.line()) break_line(worker.line(), false);
      break;
    default:
      break;
  }
}

}  // namespace thinpipe::sim
