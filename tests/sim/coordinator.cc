#include "coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "config/model_spec.h"
#include "sqlite_disk.h"
#include "worker.h"
#include "world.h"

namespace thinpipe::sim {
namespace fs = std::filesystem;
namespace {

// What a member may make a coordinator hold.
constexpr int64_t kMostOpen = 4;
constexpr uint64_t kMostFileBytes = 64 << 10;
constexpr int64_t kMostParts = 20;  // of such a file
constexpr auto kHelloTime = std::chrono::seconds(25);
constexpr DoorLimits kDoor{.connections = 64,
                           .strangers = 12,
                           .of_network = 5,
                           .per_second = 20,
                           .burst = 40,
                           .stranger_life = std::chrono::seconds(10)};
constexpr auto kSweep = std::chrono::seconds(1);  // how soon a stranger whose time is over is gone

template <class Calls, class PeerOf>
int64_t count_of_peer(const Calls& calls, PeerOf peer_of, const std::string& peer) {
  return std::count_if(calls.begin(), calls.end(), [&](const auto& call) { return peer_of(call.second) == peer; });
}

}  // namespace

SimCoordinator::SimCoordinator(World& world, std::string name, fs::path folder)
    : world_(world), name_(std::move(name)), folder_(std::move(folder)), history_(world.config()) {
  fs::create_directories(folder_);
}

SimCoordinator::~SimCoordinator() {
  if (is_up()) kill(false);
}

TimePoint SimCoordinator::now() const { return world_.now(); }

void SimCoordinator::enter() {
  world_.disk_switch().current = disk_.get();
  world_.sqlite().become(process_);
}

// ---- the process ----

Status SimCoordinator::start() {
  if (is_up()) return {};
  disk_ = std::make_unique<test::FaultyFileSystem>(test::Fault::kPowerLoss, SIZE_MAX);
  disk_->fail_all(world_.disk_fault());
  process_ = world_.new_process();
  faults_before_ = world_.sqlite().faults();
  enter();
  auto store = TRY(RunStore::open(folder_ / "run.sqlite"));
  TRY(store.set("run", world_.run()));
  RunIdentity identity{.run = world_.run(), .config = world_.config(), .folder = folder_, .corpus_id = world_.corpus()};
  identity.vocab = kVocab;
  identity.open = world_.is_open();
  identity.validation_windows = 2;
  auto desk =
      std::make_unique<RunDesk>(std::move(identity), std::move(store), world_.events(), static_cast<Outbox&>(*this));
  revision_ = world_.dice().bits();
  TRY(desk->start(revision_));
  desk_ = std::move(desk);
  admission_ = std::make_unique<Admission>(world_.run(), desk_->store(), world_.authority());
  ++life_;
  door_.emplace(kDoor);
  world_.trace("coordinator {} starts at step {}", name_, desk_->core().committed());
  const int64_t found = desk_->core().committed();
  if (found != history_.committed() && found != unsure_count_) {
    throw Violation(
        fmt::format("{} steps were committed, and a restarted coordinator knows {}", history_.committed(), found));
  }
  unsure_count_.reset();
  if (found < history_.committed()) history_.roll_back(found);
  generation_ = fact("generation");
  manifest_step_ = -1;
  observe();
  return {};
}

// The objects of a dead process must not clean up after it: its disk no longer listens.
void SimCoordinator::kill(bool power) {
  if (!is_up()) return;
  world_.trace("coordinator {} {}", name_, power ? "loses power" : "is killed");
  auto lines = std::exchange(lines_, {});
  close_door();
  enter();
  world_.sqlite().kill(process_);
  if (!power) disk_ = nullptr;
  test::FaultyFileSystem dead(test::Fault::kCrash, 1);
  world_.disk_switch().current = power ? disk_.get() : &dead;
  if (power) disk_->crash();
  uploads_.clear();
  admission_.reset();
  desk_.reset();
  frozen_until_ = {};
  if (power) world_.sqlite().lose_power(folder_.string(), world_.dice());
  for (const auto& [session, line] : lines) world_.break_line(line, /*silently=*/false);
}

// An orderly end, after the run has ended or something could not be written.
void SimCoordinator::exit() {
  auto lines = std::exchange(lines_, {});
  close_door();
  enter();
  uploads_.clear();
  admission_.reset();
  desk_.reset();
  for (const auto& [session, line] : lines) world_.break_line(line, /*silently=*/false);
}

void SimCoordinator::restore_backup_of(const SimCoordinator& other) {
  world_.sqlite().copy(other.folder_.string() + "/", folder_.string() + "/");
  fs::remove_all(folder_);
  fs::copy(other.folder_, folder_, fs::copy_options::recursive);
  history_ = other.history_;
  revoked_ = other.revoked_;
  invites_ = other.invites_;
  unsure_count_ = other.unsure_count_;
}

bool SimCoordinator::disk_has_failed() const {
  return (disk_ && disk_->failures() > 0) || world_.sqlite().faults() > faults_before_;
}

control::RunStatus SimCoordinator::status() const {
  control::RunStatus status;
  desk_->core().describe(status, now());
  return status;
}

bool SimCoordinator::is_paused() const { return status().paused(); }

bool SimCoordinator::has_connected_holder(int64_t stage) const {
  const auto now = status();
  return std::any_of(now.members().begin(), now.members().end(), [&](const auto& member) {
    return member.connected() && member.has_seat() && member.seat().stage() == stage;
  });
}

uint64_t SimCoordinator::fact(const char* name) { return std::stoull(desk_->store().get(name).take().value_or("0")); }

control::Holding SimCoordinator::holding_of(int64_t stage) {
  enter();
  control::Holding holding;
  holding.set_run(world_.run());
  holding.mutable_seat()->set_stage(stage);
  holding.set_generation(fact("generation"));
  holding.set_applied(desk_->core().committed());
  holding.set_ready_step(-1);
  holding.set_revision(fact("state_revision"));
  return holding;
}

// ---- calls ----

void SimCoordinator::tick() {
  enter();
  desk_->tick();
  for (const int64_t upload : desk_->idle_uploads()) give_up_upload(upload);
  watch_strangers();
  for (const auto& [session, line] : lines_) {
    if (line->said_hello || line->closing || line->broken || now() - line->opened <= kHelloTime) continue;
    throw Violation(fmt::format("a connection of {} that says nothing stays open", line->worker->peer()));
  }
  observe();
}

Result<SessionId> SimCoordinator::accept(const std::shared_ptr<Connection>& line, const std::string& peer) {
  enter();
  TRY(desk_->check_peer(peer));
  const auto address = fmt::format("10.0.{}.1:{}", world_.number_of(peer), ++connections_);
  if (!let_in(connections_, address)) return Error{"the door is closed"};
  door_->prove(address, peer);
  strangers_.erase(connections_);
  const auto opened = desk_->open_session(peer);
  if (!opened) door_->left(connections_);
  const auto session = TRY(opened);
  connection_of_[session] = connections_;
  if (count_of_peer(
          lines_, [](const auto& one) { return one->worker->peer(); }, peer) >= kMostOpen) {
    throw Violation(fmt::format("{} has more than {} connections", peer, kMostOpen));
  }
  lines_[session] = line;
  return session;
}

void SimCoordinator::hear(SessionId session, const control::FromWorker& message) {
  if (!lines_.contains(session) || lines_.at(session)->closing) return;
  enter();
  auto& line = *lines_.at(session);
  line.said_hello = line.said_hello || message.has_hello();
  const auto before = status();
  desk_->hear(session, message);
  check_heard(before, message);
  observe();
}

// What is said about an epoch of another start must not disturb this one's, which may have the same number.
void SimCoordinator::check_heard(const control::RunStatus& before, const control::FromWorker& message) const {
  const bool names_epoch = message.has_formed() || message.has_ready() || message.has_evaluated() ||
                           (message.has_trouble() && !message.trouble().fatal());
  if (!names_epoch || message.revision() == revision_) return;
  const auto& phase = before.phase();
  const bool at_work = phase == "forming" || phase == "running" || phase == "evaluating";
  if (!at_work || status().phase() == phase) return;
  throw Violation(
      fmt::format("an answer to another start of the coordinator ends the {} of step {}", phase, before.step()));
}

void SimCoordinator::hung_up(SessionId session) {
  if (lines_.erase(session) == 0) return;
  door_->left(connection_of_.extract(session).mapped());
  enter();
  std::set<int64_t> broken;
  for (const auto& [number, upload] : uploads_) {
    if (upload.session == session) broken.insert(number);
  }
  for (const int64_t number : broken) give_up_upload(number);
  desk_->end_session(session);
  observe();
}

// ---- the door ----

bool SimCoordinator::let_in(int connection, const std::string& address) {
  const auto decision = door_->arrive(connection, address, now());
  for (const int closed : decision.close) {
    if (strangers_.erase(closed) == 0) throw Violation("a member's connection makes room for a stranger's");
  }
  if (decision.admit) strangers_[connection] = {address.substr(0, address.rfind(':')), now()};
  return decision.admit;
}

void SimCoordinator::stranger(const std::string& address) {
  (void)let_in(++connections_, address);
  watch_strangers();
}

void SimCoordinator::watch_strangers() {
  for (const int id : door_->overdue(now())) {
    door_->left(id);
    strangers_.erase(id);
  }
  std::map<std::string, size_t> of_network;
  for (const auto& [id, one] : strangers_) {
    ++of_network[one.network];
    if (now() - one.since > kDoor.stranger_life + kSweep) throw Violation("a stranger's connection stays open");
  }
  if (strangers_.size() > kDoor.strangers) throw Violation(fmt::format("{} strangers are in", strangers_.size()));
  for (const auto& [network, count] : of_network) {
    if (count > kDoor.of_network) throw Violation(fmt::format("{} strangers of one network are in", count));
  }
}

void SimCoordinator::close_door() {
  door_.reset();
  strangers_.clear();
  connection_of_.clear();
}

void SimCoordinator::control(control::ControlRequest::What what) {
  enter();
  desk_->control(what);
  observe();
}

void SimCoordinator::kick(const std::string& peer) {
  enter();
  desk_->kick(peer);
  if (!desk_->ended()) revoked_.insert(peer);
  observe();
}

Result<std::string> SimCoordinator::new_invite(int64_t uses) {
  enter();
  control::InviteRequest request;
  request.set_uses(uses);
  request.set_lifetime_s(3600);
  const auto made = TRY(admission_->manage(request, {"10.0.0.1:1"}, world_.wall_now()));
  const auto invite = TRY(parse_invite(made.text()));
  invites_[invite.token].uses = static_cast<size_t>(uses);
  return invite.token;
}

// As the service's Join does.
Result<std::string> SimCoordinator::join(const std::string& token, const std::string& name, const std::string& key) {
  enter();
  control::JoinRequest request;
  request.set_run(world_.run());
  request.set_token(token);
  request.set_enrol(true);
  request.set_name(name);
  request.set_certificate_request(key);
  TRY(admission_->admit_call("an address", world_.wall_now()));
  const auto invite = TRY(admission_->check(request, world_.wall_now()));
  const auto enrolled = TRY(admission_->enrol(invite, request));
  TRY(desk_->check_peer(enrolled.peer));
  auto& used = invites_[token];
  const bool known = std::any_of(invites_.begin(), invites_.end(),
                                 [&](const auto& one) { return one.second.peers.contains(enrolled.peer); });
  if (!known) used.peers.insert(enrolled.peer);
  if (used.peers.size() > used.uses) throw Violation("an invite has brought in more peers than it has uses");
  return enrolled.peer;
}

Result<std::string> SimCoordinator::fetch(const std::string& peer, const control::StateFile& file) {
  enter();
  TRY(desk_->check_peer(peer));
  TRY(desk_->may_fetch(peer, file.unit()));
  const CheckpointId id{file.step(), file.generation()};
  if (!desk_->checkpoints().holds(id, file.unit(), file.sha256())) return Error{"there is no such file"};
  return read_file(desk_->checkpoints().path_of(id, file.unit()));
}

Result<std::optional<int64_t>> SimCoordinator::begin_upload(const Connection& line, const control::StateFile& file) {
  enter();
  const auto& peer = line.worker->peer();
  TRY(desk_->check_peer(peer));
  const auto number = TRY(desk_->open_upload(peer));
  const auto refuse = [&](const Error& error) {
    desk_->close_upload(number);
    observe();
    return error;
  };
  if (const auto allowed = desk_->may_save(number, file); !allowed) return refuse(allowed.error());
  const auto expected = desk_->expect_file(number, file);
  if (!expected) return refuse(expected.error());
  if (!expected.value()) {
    desk_->close_upload(number);
    return std::optional<int64_t>();
  }
  if (file.bytes() > kMostFileBytes) throw Violation(fmt::format("a file of {} bytes is awaited", file.bytes()));
  auto incoming = desk_->receive(file);
  if (!incoming) return refuse(incoming.error());
  if (count_of_peer(
          uploads_, [](const Upload& one) { return one.peer; }, peer) >= kMostOpen) {
    throw Violation(fmt::format("{} has more than {} uploads", peer, kMostOpen));
  }
  uploads_.emplace(number, Upload{line.session, peer, file, "", std::move(incoming).value()});
  return std::optional(number);
}

Status SimCoordinator::continue_upload(int64_t number, const std::string& part) {
  enter();
  const auto found = uploads_.find(number);
  if (found == uploads_.end()) return Error{"the upload was given up"};
  if (++found->second.parts > kMostParts) throw Violation(fmt::format("{} parts of one file", found->second.parts));
  found->second.bytes += part;
  auto taken = found->second.incoming->append(part);
  if (taken) taken = desk_->note_part(number);
  observe();
  if (!taken && uploads_.contains(number)) give_up_upload(number);
  return taken;
}

Status SimCoordinator::end_upload(int64_t number) {
  enter();
  const auto found = uploads_.find(number);
  if (found == uploads_.end()) return Error{"the upload was given up"};
  auto& upload = found->second;
  const auto arrived = upload.incoming->check();
  Status status = arrived ? Status() : Status(arrived.error());
  const auto& core = desk_->core();
  const bool wanted = core.wants(upload.file);
  const bool may = core.saves_unit(upload.peer, upload.file.unit()) && !core.is_revoked(upload.peer);
  if (arrived) {
    const auto content = desk_->check_content(arrived.value(), upload.file);
    status = desk_->end_file(number, upload.file, *upload.incoming, content);
  }
  if (status && wanted && !core.wants(upload.file)) {
    const auto& unit = upload.file.unit();
    if (!may) throw Violation(fmt::format("{} has put {}, and does not hold it", upload.peer, unit));
    const int64_t step = upload.file.step();
    if (upload.file.basis_version() != 0)
      throw Violation(fmt::format("a file of {} that was announced with another basis was taken", unit));
    if (upload.bytes != unit_file(world_.config(), unit, step, history_.states(step).at(unit))) {
      throw Violation(fmt::format("a file of {} with another state was taken from {}", unit, upload.peer));
    }
  }
  give_up_upload(number);
  observe();
  return status;
}

void SimCoordinator::give_up_upload(int64_t number) {
  enter();
  uploads_.erase(number);
  desk_->close_upload(number);
}

// ---- what the desk sends ----

Status SimCoordinator::send(SessionId session, control::ToWorker message) {
  if (!desk_) return {};  // it is starting
  check_sent(session, message);
  if (const auto found = lines_.find(session); found != lines_.end()) world_.to_worker(found->second, message);
  return {};
}

void SimCoordinator::close(SessionId session) {
  if (const auto found = lines_.find(session); found != lines_.end()) world_.close_line(found->second);
}

void SimCoordinator::epoch_began(uint64_t) {
  if (!world_.sqlite().log_is_synced(folder_.string())) throw Violation("an epoch began before it was on the disk");
}

void SimCoordinator::check_sent(SessionId session, const control::ToWorker& message) {
  if (message.revision() != revision_ && !message.has_refuse())
    throw Violation("a message without the revision of this start");
  if (message.has_refuse() && lines_.contains(session)) {
    world_.trace("coordinator {} refuses {}: {}", name_, lines_.at(session)->worker->peer(), message.refuse().reason());
    constexpr auto kOnItsWay = std::chrono::seconds(5);
    const auto away = std::chrono::duration<double>(message.refuse().retry_after_s()) + kOnItsWay;
    auto& until = lines_.at(session)->worker->away_until;
    until = std::max(until, now() + std::chrono::duration_cast<Duration>(away));
  } else if (message.has_commit()) {
    observe_rows();
    if (!world_.sqlite().log_is_synced(folder_.string()))
      throw Violation("a commit was sent before it was on the disk");
    world_.note_commit(message.commit(), history_);
  } else if (message.has_form()) {
    observe_rows();
    world_.expect({revision_, message.form().epoch()}, message.form().step(), history_);
    generation_ = message.form().generation();
    world_.trace("coordinator {} forms epoch {} at step {}: stage {}{}", name_, message.form().epoch(),
                 message.form().step(), message.form().seat().stage(), message.form().restore() ? ", restored" : "");
    check_form(session, message.form());
  } else if (message.has_run_step()) {
    world_.expect({revision_, message.run_step().epoch()}, message.run_step().step(), history_);
  } else if (message.has_evaluate()) {
    world_.expect({revision_, message.evaluate().epoch()}, message.evaluate().step(), history_);
  }
}

void SimCoordinator::check_form(SessionId session, const control::Form& form) {
  const auto found = lines_.find(session);
  if (found == lines_.end()) return;
  auto& worker = *found->second->worker;
  if (has_revoked(worker.peer())) {
    throw Violation(fmt::format("{} was removed, and gets a seat", worker.peer()));
  }
  if (form.restore() || worker.life() != found->second->worker_life || !worker.core()) return;
  const auto& holding = worker.core()->holding();
  const bool in_doubt = holding && holding->ready_step() == form.step() - 1 && holding->applied() == form.step() - 1;
  if (holding && (holding->applied() == form.step() || in_doubt)) return;
  throw Violation(fmt::format("{} is told to keep a state that it does not have", worker.peer()));
}

// ---- what the desk writes ----

void SimCoordinator::observe() {
  if (!is_up()) return;
  observe_rows();
  const auto now = status();
  for (const auto& member : now.members()) {
    if (member.has_seat()) world_.note_seat(member.peer(), member.seat().stage());
  }
  if (const auto step = now.manifest_step(); step != manifest_step_) {
    manifest_step_ = step;
    if (manifest_step_ >= 0) check_checkpoint(manifest_step_);
  }
  observe_end();
}

void SimCoordinator::observe_rows() {
  const int64_t committed = desk_->core().committed();
  if (committed < history_.committed()) world_.check_rollback(*this, history_.committed(), committed);
  if (desk_->ended() && desk_->ended()->failed) {
    unsure_count_ = committed;  // the core decided it, and writing it may have failed
    return;
  }
  if (committed < history_.committed()) history_.roll_back(committed);
  if (committed == history_.committed()) return;
  const auto rows = desk_->store().commits(history_.committed());
  if (!rows) return;  // the run is about to end
  for (const auto& row : rows.value()) {
    if (const auto wrong = history_.add(row); !wrong.empty()) throw Violation(wrong);
    world_.trace("coordinator {} commits step {} in epoch {}{}", name_, row.step, row.epoch,
                 row.apply ? "" : " (skipped)");
  }
}

void SimCoordinator::check_checkpoint(int64_t step) {
  if (step > history_.committed()) throw Violation("a checkpoint of steps that were not committed");
  const auto found = checkpoint_of_step(folder_, step);
  if (!found) throw Violation("the last checkpoint is not whole: " + found.error().message);
  for (size_t i = 0; i < found.value().files.size(); ++i) {
    const auto& unit = found.value().manifest.files[i].unit;
    const auto bytes = read_file(found.value().files[i]);
    const auto state = bytes ? state_in(bytes.value()) : bytes.error();
    if (state && state.value() == history_.states(step).at(unit)) continue;
    throw Violation(fmt::format("the checkpoint of step {} has another state of {}", step, unit));
  }
}

void SimCoordinator::observe_end() {
  const auto end = desk_->ended();
  if (!end) {
    if (desk_->core().done()) throw Violation("the run is over, and serve does not end");
    return;
  }
  world_.trace("coordinator {} ends: {}", name_, end->reason);
  if (end->failed && !disk_has_failed()) throw Violation("the run was ended: " + end->reason);
  if (end->reason.empty() || end->reason.find('\n') != std::string::npos)
    throw Violation("the end needs one clear line");
  if (!end->failed) {
    check_checkpoint(history_.committed());
    finished_ = end;
  }
  // The desk is at work: the process ends after this event.
  world_.events().after({}, [this, life = life_] {
    if (is_up() && life == life_) exit();
  });
}

}  // namespace thinpipe::sim
