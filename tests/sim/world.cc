#include "world.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "config/model_spec.h"
#include "run/run_changes.h"

namespace thinpipe::sim {
namespace fs = std::filesystem;
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr auto kTick = milliseconds(250);
constexpr size_t kMostWorkers = 9;
constexpr auto kCalmTime = minutes(40);  // in which an undisturbed run must end
constexpr auto kNoticed = std::chrono::seconds(5);
constexpr int64_t kInviteUses = 3;

}  // namespace

Stage::Stage()
    : folder([] {
        // In memory, if there is such a folder: a simulation writes hundreds of small files.
        if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", /*overwrite=*/0);
        auto name = (fs::temp_directory_path() / "thinpipe-sim-XXXXXX").string();
        TP_CHECK(::mkdtemp(name.data()) != nullptr, "cannot create {}", name);
        return fs::path(name);
      }()),
      run(32, 'a'),
      authority(CertificateAuthority::open_or_create(folder / "authority", run).take()) {
  for (size_t i = 0; i < kMostWorkers + 3; ++i) keys.push_back(certificate_request(new_key_pem()).take());
}

Stage::~Stage() {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

World::World(const Stage& stage, uint64_t seed, const std::vector<bool>& kept, bool traces)
    : stage_(stage),
      seed_(seed),
      open_(is_open_seed(seed)),
      traces_(traces),
      config_(sim_config(open_)),
      config_sha256_(config_identity(config_)),
      folder_(stage.folder / "world"),
      dice_(seed, "world") {
  fs::remove_all(folder_);
  scoped_.emplace(switch_);
  const auto plan = make_plan(seed, open_);
  for (size_t i = 0; i < plan.size(); ++i) {
    if (kept.empty() || kept[i]) plan_.push_back(plan[i]);
  }
}

World::World(const Stage& stage, const DiskFault& fault)
    : World(stage, /*seed=*/0, std::vector<bool>(kMostFaults, false), /*traces=*/false) {
  arm(fault);
}

// The coordinators' objects use the disks.
World::~World() {
  switch_.before = {};
  coordinators_.clear();
}

void World::arm(const DiskFault& fault) {
  disk_may_fail_ = true;
  if (fault.sqlite) {
    const auto kind = fault.half            ? SqliteFault::kShortWrite
                      : fault.reason == EIO ? SqliteFault::kIoError
                                            : SqliteFault::kFull;
    sqlite_.fail(kind, fault.sticky, fault.operation);
    return;
  }
  switch_.before = [this, fault] {
    if (file_operations_++ != fault.operation) return;
    auto& disk = coordinators_.front()->disk();
    disk.fail_once(fault.reason, fault.half);
    if (!fault.sticky) return;
    disk_fault_ = fault.reason;
    disk.fail_all(fault.reason);
  };
}

WallTime World::wall_now() const {
  const auto time = std::chrono::duration_cast<WallTime::duration>(now().time_since_epoch() + wall_offset_);
  return WallTime(std::chrono::hours(24 * 365 * 50)) + time;
}

Duration World::delay() {
  return dice_.between(milliseconds(5), dice_.one_in(20) ? milliseconds(900) : milliseconds(60));
}
Duration World::compute_time() { return dice_.between(milliseconds(50), milliseconds(300)); }

// ---- the course of a simulation ----

void World::play() {
  coordinators_.push_back(std::make_unique<SimCoordinator>(*this, "A", folder_ / "a"));
  wanted_up_.insert(0);
  if (const auto started = coordinators_.front()->start(); !started && !disk_may_fail_)
    throw Violation(started.error().message);
  const auto spares = dice_.below(3);
  for (uint64_t i = 0; i < static_cast<uint64_t>(config_.pipeline.stages) + spares; ++i) enrol_worker();
  keep_ticking(*coordinators_.front());
  keep_serving();
  for (const auto& fault : plan_) events_.at(TimePoint(fault.at), [this, &fault] { happen(fault); });
  events_.at(TimePoint(kPlanEnd), [this] { calm_down(); });
  const auto finished = [&] { return coordinators_[served_]->finished().has_value(); };
  while (!finished() && events_.happen()) {
    if (now() <= TimePoint(kPlanEnd + kCalmTime)) continue;
    control::RunStatus status;
    if (coordinators_[served_]->is_up()) coordinators_[served_]->desk().core().describe(status, now());
    throw Violation(fmt::format("the faults are over, and the run does not come to its end: {} at step {}: {}",
                                status.phase(), status.step(), status.why()));
  }
  check_result();
}

void World::check_result() const {
  const auto& history = coordinators_[served_]->history();
  if (history.committed() != config_.train.steps) throw Violation("the run has ended too early");
  History undisturbed(config_);
  bool skipped = false;
  for (const auto& row : history.rows()) {
    skipped = skipped || !row.apply;
    if (!undisturbed.add(row).empty()) throw Violation("the rows do not give an undisturbed run");
  }
  if (undisturbed.states(config_.train.steps) != history.states(config_.train.steps)) throw Violation("another result");
  if (!skipped) trace("the result is that of an undisturbed run");
}

// The owner starts a coordinator again that has ended, and continues a run that has paused itself.
void World::keep_serving() {
  for (const size_t number : wanted_up_) {
    auto& coordinator = *coordinators_[number];
    if (coordinator.finished()) continue;
    if (!coordinator.is_up()) {
      const auto before = sqlite_.faults();
      const auto started = coordinator.start();
      const bool disk_failed = disk_fault_ != 0 || coordinator.disk().failures() > 0 || sqlite_.faults() > before;
      if (!started && !disk_failed) {
        throw Violation("serve does not start: " + started.error().message);
      }
      if (!started) trace("coordinator {} does not start: {}", coordinator.name(), started.error().message);
      if (started) keep_ticking(coordinator);
    } else if (!coordinator.is_frozen() && coordinator.is_paused()) {
      coordinator.control(control::ControlRequest::RESUME);
    }
  }
  events_.after(dice_.between(std::chrono::seconds(2), std::chrono::seconds(15)), [this] { keep_serving(); });
}

void World::keep_ticking(SimCoordinator& coordinator) {
  events_.after(kTick, [this, &coordinator, life = coordinator.life()] {
    if (!coordinator.is_up() || coordinator.life() != life) return;
    if (coordinator.is_frozen()) {
      // A frozen process ticks as soon as it wakes up, before or after it reads what has come.
      return events_.at(coordinator.frozen_until() + dice_.between(Duration{}, milliseconds(20)),
                        [this, &coordinator, life] {
                          if (!coordinator.is_up() || coordinator.life() != life) return;
                          if (!coordinator.is_frozen()) coordinator.tick();
                          keep_ticking(coordinator);
                        });
    }
    coordinator.tick();
    keep_ticking(coordinator);
  });
}

// No more faults: what is broken is mended, one coordinator stays, and new members come.
void World::calm_down() {
  trace("the faults are over");
  calm_ = true;
  disk_fault_ = 0;
  sqlite_.mend();
  peers_cut_off_.clear();
  cut_off_.clear();
  wall_offset_ = {};
  if (wanted_up_.size() > 1) served_ = dice_.below(2);
  for (size_t i = 0; i < coordinators_.size(); ++i) {
    if (i != served_) {
      wanted_up_.erase(i);
      coordinators_[i]->kill(false);
    } else if (coordinators_[i]->is_up()) {
      coordinators_[i]->disk().fail_all(0);
    }
  }
  for (auto& worker : workers_) {
    worker->set_lie(Lie::kNone);
    if (worker->route != static_cast<int>(served_)) worker->trouble_until(now());  // it has to find the way
    worker->route = static_cast<int>(served_);
    if (worker->line() && worker->line()->coordinator != coordinators_[served_].get())
      break_line(worker->line(), false);
  }
  calm();
}

void World::calm() {
  auto& served = *coordinators_[served_];
  if (served.finished()) return;
  for (size_t i = 0; i < workers_.size(); ++i) {
    auto& worker = *workers_[i];
    if (!worker.revoked && !worker.is_alive() && now() >= worker.away_until) {
      worker.left = false;
      worker.start();
    }
  }
  // Members may be away for an hour: others come.
  int present = 0;
  for (const auto& worker : workers_) present += worker->is_alive() && !worker->revoked ? 1 : 0;
  if (present < config_.pipeline.stages + 1 && can_call(served)) enrol_worker();
  events_.after(std::chrono::seconds(5), [this] { calm(); });
}

void World::enrol_worker() {
  auto& coordinator = *coordinators_[served_];
  if (workers_.size() >= stage_.keys.size() || !can_call(coordinator)) return;
  const auto& key = stage_.keys[workers_.size()];
  const auto peer = enrol(fmt::format("w{}", workers_.size()), key);
  if (!peer) return;
  workers_.push_back(std::make_unique<SimWorker>(*this, *peer, key));
  workers_.back()->route = static_cast<int>(served_);
  workers_.back()->start();
}

std::optional<std::string> World::enrol(const std::string& name, const std::string& key) {
  auto& coordinator = *coordinators_[served_];
  const auto join = [&](const std::string& token) { return coordinator.join(token, name, key); };
  auto enrolled = invites_.empty() ? Result<std::string>(Error{"no invite"}) : join(invites_.back());
  if (!enrolled) {  // used up, expired by a clock that jumped, or not in a backup
    const auto token = coordinator.new_invite(kInviteUses);
    if (!token && !calm_) return std::nullopt;
    invites_.push_back(token.value());
    enrolled = join(invites_.back());
    if (!enrolled && calm_) throw Violation("an invited worker cannot join: " + enrolled.error().message);
    if (!enrolled) return std::nullopt;
  }
  if (!dice_.one_in(4)) return enrolled.value();
  // The answer may be lost. Asking again, with any invite, gives the same name.
  const auto again = join(invites_[dice_.below(invites_.size())]);
  if (again && again.value() != enrolled.value()) throw Violation("one key has become two peers");
  return enrolled.value();
}

// ---- the network ----

SimWorker* World::worker_named(const std::string& peer) const {
  for (const auto& worker : workers_) {
    if (worker->peer() == peer) return worker.get();
  }
  return nullptr;
}

int World::life_of(const std::string& peer) const {
  const auto* worker = worker_named(peer);
  return worker == nullptr ? -1 : worker->life();
}

int World::number_of(const std::string& peer) const {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i]->peer() == peer) return static_cast<int>(i);
  }
  return static_cast<int>(workers_.size());
}

std::string World::other_peer(const std::string& peer) {
  const auto& other = any_worker(dice_.bits() >> 8).peer();
  return other == peer ? "nobody" : other;
}

bool World::is_cut_off(const SimWorker& worker, const SimCoordinator&) const {
  const auto found = cut_off_.find(worker.peer());
  return found != cut_off_.end() && now() < found->second;
}

bool World::reaches(const std::string& from, const std::string& to) const {
  const auto found = peers_cut_off_.find(std::minmax(from, to));
  return found == peers_cut_off_.end() || now() >= found->second;
}

// A relay makes up for a direct path that does not work; here it always does, after the coordinator has chosen it.
bool World::are_linked(const SimWorker& one, const std::string& other, const SimWorker::At& at) const {
  const auto* worker = worker_named(other);
  return worker != nullptr && worker->is_linked_at(at) && reaches(one.peer(), other);
}

std::shared_ptr<Connection> World::connect(SimWorker& worker) {
  const auto route = std::min(static_cast<size_t>(worker.route), coordinators_.size() - 1);
  auto& coordinator = *coordinators_[route];
  if (!can_call(coordinator) || is_cut_off(worker, coordinator)) return nullptr;
  auto line = std::make_shared<Connection>(Connection{&worker, worker.life(), &coordinator, coordinator.life()});
  const auto session = coordinator.accept(line, worker.peer());
  if (!session) return nullptr;
  line->session = session.value();
  line->opened = now();
  return line;
}

SimCoordinator* World::coordinator_at(const std::shared_ptr<Connection>& line) {
  auto& coordinator = *line->coordinator;
  if (line->broken || coordinator.life() != line->coordinator_life || !can_call(coordinator)) return nullptr;
  return is_cut_off(*line->worker, coordinator) ? nullptr : &coordinator;
}

void World::to_coordinator(const std::shared_ptr<Connection>& line, const control::FromWorker& message) {
  line->last_up = std::max(line->last_up, now() + delay());
  events_.at(line->last_up, [this, line, message] {
    auto& coordinator = *line->coordinator;
    if (line->broken || !coordinator.is_up() || coordinator.life() != line->coordinator_life) return;
    if (is_cut_off(*line->worker, coordinator)) return;  // the line breaks, too
    if (coordinator.is_frozen()) {
      // It waits in the socket, in order.
      line->last_up = std::max(line->last_up, coordinator.frozen_until() + milliseconds(10));
      return events_.at(coordinator.frozen_until() + milliseconds(10), [this, line, message] {
        auto& thawed = *line->coordinator;
        if (!line->broken && can_call(thawed) && thawed.life() == line->coordinator_life)
          thawed.hear(line->session, message);
      });
    }
    coordinator.hear(line->session, message);
  });
}

void World::to_worker(const std::shared_ptr<Connection>& line, const control::ToWorker& message) {
  if (line->closing) return;
  line->last_down = std::max(line->last_down, now() + delay());
  const auto deliver = [line, message] { line->worker->hear(message); };
  events_.at(line->last_down, [this, line, deliver] {
    if (line->broken || line->worker->life() != line->worker_life) return;
    if (is_cut_off(*line->worker, *line->coordinator)) return;
    line->worker->when_awake(deliver);
  });
}

void World::break_line(const std::shared_ptr<Connection>& line, bool silently) {
  if (line->broken) return;
  line->broken = true;
  const auto notice = [&] {
    return silently ? dice_.between(std::chrono::seconds(3), std::chrono::seconds(30))
                    : dice_.between({}, milliseconds(500));
  };
  events_.after(notice(), [line] {
    if (line->worker->life() == line->worker_life)
      line->worker->when_awake([line] { line->worker->line_ended(line.get()); });
  });
  const auto tell_coordinator = [this, line](const auto& self) -> void {
    auto& coordinator = *line->coordinator;
    if (!coordinator.is_up() || coordinator.life() != line->coordinator_life) return;
    if (!coordinator.is_frozen()) return coordinator.hung_up(line->session);
    events_.at(coordinator.frozen_until() + milliseconds(10), [self] { self(self); });
  };
  events_.after(notice(), [tell_coordinator] { tell_coordinator(tell_coordinator); });
}

void World::close_line(const std::shared_ptr<Connection>& line) {
  if (std::exchange(line->closing, true)) return;
  events_.at(std::max(line->last_down, now()) + milliseconds(20), [this, line] { break_line(line, false); });
}

Result<std::string> World::fetch(SimWorker& worker, const control::StateFile& file) {
  auto* coordinator = worker.line() ? coordinator_at(worker.line()) : nullptr;
  if (coordinator == nullptr) return Error{"the coordinator cannot be reached"};
  return coordinator->fetch(worker.peer(), file);
}

void World::to_neighbour(const SimWorker& from, const std::string& to, SimWorker::At at, const PacketTag& tag,
                         uint64_t payload) {
  auto* worker = worker_named(to);
  if (worker == nullptr || !reaches(from.peer(), to)) return;
  events_.after(delay(), [worker, life = worker->life(), at, tag, payload] {
    if (worker->life() == life) worker->packet(at, tag, payload);
  });
}

// ---- what must hold ----

void World::note_seat(const std::string& peer, int64_t stage) {
  if (auto* worker = worker_named(peer)) worker->held.insert(stage);
}

void World::expect(SimWorker::At at, int64_t step, const History& history) {
  expected_[{at.revision, at.epoch, step}] = history.states(step);
}

const UnitStates* World::expected(SimWorker::At at, int64_t step) const {
  const auto found = expected_.find({at.revision, at.epoch, step});
  return found == expected_.end() ? nullptr : &found->second;
}

void World::note_commit(const control::Commit& commit, const History& history) {
  if (commit.step() >= history.committed()) throw Violation("a commit was sent of a step that has no row");
  const auto& row = history.rows()[static_cast<size_t>(commit.step())];
  if (row.epoch != commit.epoch() || row.apply != commit.apply() || row.grad_factor != commit.grad_factor()) {
    throw Violation(fmt::format("the commit of step {} says something else than its row", commit.step()));
  }
  commits_[{commit.revision(), commit.epoch(), commit.step()}] = commit;
}

void World::check_commit(const control::Commit& commit, const std::string& peer) const {
  if (commits_.contains({commit.revision(), commit.epoch(), commit.step()})) return;
  throw Violation(fmt::format("{} applies step {}, which was not committed", peer, commit.step()));
}

bool World::has_copy(const SimWorker& worker, const SimCoordinator& coordinator, int64_t committed,
                     int64_t stage) const {
  const auto lease = std::chrono::seconds(config_.cluster.lease_s) + kNoticed;
  if (!worker.is_alive() || worker.is_frozen() || worker.revoked || worker.left || worker.lie() != Lie::kNone)
    return false;
  if (now() - worker.troubled() <= lease || now() < worker.away_until || is_cut_off(worker, coordinator)) return false;
  if (coordinators_[static_cast<size_t>(worker.route)].get() != &coordinator) return false;
  const auto& holding = worker.core()->holding();
  // After a return to a checkpoint the same steps are another history, although here they come to the same states.
  if (!holding || holding->seat().stage() != stage || holding->generation() != coordinator.generation()) return false;
  const auto& rows = coordinator.history().rows();
  const bool in_doubt = holding->applied() == committed - 1 && holding->ready_step() == committed - 1 &&
                        committed > 0 && holding->ready_epoch() == rows[static_cast<size_t>(committed) - 1].epoch;
  if (holding->applied() != committed && !in_doubt) return false;
  return worker.states() == coordinator.history().states_of_stage(holding->applied(), stage);
}

void World::check_rollback(const SimCoordinator& coordinator, int64_t from, int64_t to) const {
  std::vector<std::string> holders;
  for (int64_t stage = 0; stage < config_.pipeline.stages; ++stage) {
    for (const auto& worker : workers_) {
      if (!has_copy(*worker, coordinator, from, stage)) continue;
      holders.push_back(worker->peer());
      break;
    }
  }
  if (static_cast<int64_t>(holders.size()) < config_.pipeline.stages) return;
  throw Violation(fmt::format("the run returns from step {} to {}, and {} have the state of every stage", from, to,
                              fmt::format("{}, {} and {}", holders[0], holders[1], holders[2])));
}

std::optional<int64_t> World::stage_to_claim(const SimWorker& liar, bool vacant) {
  auto* coordinator = liar.line() ? coordinator_at(liar.line()) : nullptr;
  if (coordinator == nullptr || liar.core()->holding()) return std::nullopt;
  for (int64_t stage = 0; stage < config_.pipeline.stages; ++stage) {
    if (!liar.held.contains(stage) && !(vacant && coordinator->has_connected_holder(stage))) return stage;
  }
  return std::nullopt;
}

std::optional<control::Holding> World::claim_of(const SimWorker& liar) {
  auto stage = stage_to_claim(liar, /*vacant=*/true);
  if (!stage) stage = stage_to_claim(liar, /*vacant=*/false);
  if (!stage) return std::nullopt;
  return liar.line()->coordinator->holding_of(*stage);
}

bool World::can_claim_vacant(const SimWorker& liar) { return stage_to_claim(liar, /*vacant=*/true).has_value(); }

}  // namespace thinpipe::sim
