#include "run/coordinator/coordinator_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "boundary/sizes.h"
#include "config/config_file.h"
#include "net/addresses.h"
#include "pipeline/unit_file.h"
#include "run/run_changes.h"
#include "run/run_files.h"

namespace thinpipe {
namespace {

// A neighbour may be busy for as long as its state takes to download; a new epoch ends the wait.
constexpr auto kPartnerPatience = std::chrono::hours(2);
// The size of a file's parts: large enough to be cheap, small enough to let other traffic through.
constexpr size_t kChunkBytes = 256 << 10;
constexpr auto kCallFarewell = std::chrono::seconds(2);
constexpr uint32_t kMaxPadding = 1 << 20;
constexpr int64_t kMostEvents = 200;  // in one answer
// Per peer. A worker has one of each; an old one may not have ended yet.
constexpr int64_t kMostSessions = 4, kMostUploads = 4;
constexpr auto kHelloPatience = std::chrono::seconds(20);
constexpr auto kUploadPatience = std::chrono::minutes(1);  // between two parts
constexpr auto kOverBudgetWait = std::chrono::milliseconds(250);
// The first stage may ask for the tokens of every microbatch, and steps may be short.
constexpr double kWindowsCost = 0.02;

template <class... Cases>
struct EffectCases : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
EffectCases(Cases...) -> EffectCases<Cases...>;  // clang before 17 needs it

grpc::Status denial(const Error& error) { return {grpc::StatusCode::PERMISSION_DENIED, error.message}; }
grpc::Status refusal(const std::string& reason) { return {grpc::StatusCode::FAILED_PRECONDITION, reason}; }

grpc::Status exhausted(const Error& error) { return {grpc::StatusCode::RESOURCE_EXHAUSTED, error.message}; }

// How many calls of this kind the peer has open.
template <class Calls>
int64_t count_of(const Calls& calls, const std::string& peer) {
  return std::count_if(calls.begin(), calls.end(), [&](const auto& call) { return call.second.peer == peer; });
}

WallTime wall_now() { return WallTime::clock::now(); }

// The run's authority puts one name into a certificate.
bool is_named(const Caller& caller, std::string_view name) {
  return caller.authenticated && caller.names.size() == 1 && caller.names.front() == name;
}

std::string cuts_text(const std::vector<int64_t>& cuts) { return fmt::format("{}", fmt::join(cuts, " ")); }

// How long a message takes on the slowest emulated cut; mean of both directions.
double hop_seconds(const RunConfig& config, const BoundarySizes& sizes) {
  const auto one_way = [](const LinkShape& line, size_t bytes) {
    const auto rate = static_cast<double>(line.rate_bits_per_s);
    return (rate > 0 ? 8.0 * static_cast<double>(bytes) / rate : 0) + seconds(line.delay) + seconds(line.jitter);
  };
  double slowest = 0;
  for (const auto& cut : link_settings(config)) {
    slowest = std::max(slowest, (one_way(cut.forward, sizes.forward) + one_way(cut.backward, sizes.backward)) / 2);
  }
  return slowest;
}

// Converts a checkpoint's files to the core's messages.
std::vector<control::StateFile> state_files_of(const CheckpointManifest& manifest) {
  std::vector<control::StateFile> files;
  for (const auto& file : manifest.files) {
    auto& one = files.emplace_back();
    one.set_step(manifest.id.step);
    one.set_generation(manifest.id.generation);
    one.set_unit(file.unit);
    one.set_bytes(file.bytes);
    one.set_sha256(file.sha256);
    one.set_basis_version(manifest.basis_version);
    one.set_basis_hash(manifest.basis_hash);
  }
  return files;
}

}  // namespace

// ---- start, and the calls of the program that serves the run ----

CoordinatorService::CoordinatorService(RunIdentity identity, RunDoor door, RunStore store, const TokenWindows& windows,
                                       const Clock& clock)
    : identity_(std::move(identity)),
      door_(std::move(door)),
      store_(std::move(store)),
      admission_(identity_.run, store_, door_.authority),
      windows_(windows),
      clock_(clock),
      checkpoints_(identity_.folder / "checkpoints", identity_.run),
      logs_(identity_.folder, identity_.config.train),
      tunnels_([this](const wire::Hello& hello, const Caller& caller) { return may_tunnel(hello, caller); },
               kPartnerPatience) {}

Status CoordinatorService::start() {
  const std::lock_guard lock(mutex_);
  auto stored = TRY(store_.load());
  TRY(read_checkpoints(stored));
  TRY(forget_other_cuts(stored));
  TRY(logs_.rewrite(store_));
  core_.emplace(make_rules(), std::move(stored), clock_.now());
  return {};
}

RunRules CoordinatorService::make_rules() const {
  const auto& config = identity_.config;
  const auto sizes = boundary_sizes(config, identity_.vocab);
  return {.run = identity_.run,
          .config = config,
          .config_sha256 = config_identity(config),
          .open = door_.open,
          .vocab = identity_.vocab,
          .validation_windows = windows_.validation_windows(),
          .hop_s = hop_seconds(config, sizes),
          .packet_bytes = sizes.forward};
}

// Finds the newest whole checkpoint whose step is not later than the last row.
Status CoordinatorService::read_checkpoints(StoredRun& stored) {
  TRY(checkpoints_.clean_partials());
  const auto found = TRY(checkpoints_.latest(stored.steps.committed));
  for (const auto& reason : checkpoints_.refusals()) {
    log_warn("{}", reason);
    TRY(store_.add_event("refused", reason));
  }
  const auto origin = TRY(store_.get("begun_from"));
  if (!found && origin) {
    return Error{fmt::format("{}: this run began from given weights ({}) and none of its checkpoints is whole",
                             identity_.folder.string(), *origin)};
  }
  if (found) note_manifest(stored.saving, state_files_of(*found));
  return {};
}

// If the cuts have changed, the workers' state is useless: begins a new generation in which nobody has a seat.
Status CoordinatorService::forget_other_cuts(StoredRun& stored) {
  if (identity_.config.pipeline.auto_cuts) return {};
  const auto cuts = cuts_text(blocks_per_stage(identity_.config));
  const auto before = TRY(store_.get("cuts"));
  if (before && *before != cuts) {
    stored.steps.epoch = stored.steps.generation = TRY(store_.forget_holders());
    stored.roster.clear();
  }
  return store_.set("cuts", cuts);
}

bool CoordinatorService::complete() const {
  const std::lock_guard lock(mutex_);
  return core_->committed() == identity_.config.train.steps && core_->has_final_loss();
}

control::RunStatus CoordinatorService::status() const {
  const std::lock_guard lock(mutex_);
  control::RunStatus status;
  core_->describe(status, clock_.now());
  return status;
}

Status CoordinatorService::remember_port(int port) {
  const std::lock_guard lock(mutex_);
  return store_.set("port", fmt::format("{}", port));
}

void CoordinatorService::tick() {
  const std::lock_guard lock(mutex_);
  apply(core_->tick(clock_.now()));
  end_idle_calls();
}

void CoordinatorService::end_idle_calls() {
  const auto now = clock_.now();
  for (auto& [id, session] : sessions_) {
    if (!session.said_hello && now - session.opened > kHelloPatience) session.closed = true;
  }
  changed_.notify_all();
  for (const auto& [number, upload] : uploads_) {
    const bool named = !upload.file.unit().empty();
    if (now - upload.moved > kUploadPatience || (named && !core_->wants(upload.file))) upload.context->TryCancel();
  }
}

void CoordinatorService::stop_after_checkpoint() {
  const std::lock_guard lock(mutex_);
  apply(core_->control(control::ControlRequest::STOP, clock_.now()));
}

std::optional<Finish> CoordinatorService::ended() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

void CoordinatorService::wait_for_farewells(Duration most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return sessions_.empty(); });
}

void CoordinatorService::close_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, session] : sessions_) {
    session.closed = true;
    session.context->TryCancel();
  }
  changed_.notify_all();
}

void CoordinatorService::on_member(std::function<void(const std::string&, const std::string&)> told) {
  on_member_ = std::move(told);
}

void CoordinatorService::announce(std::vector<std::string> addresses) {
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

// ---- the door: a certificate proves a name; the roster says what the name may do ----

CoordinatorService::Visit CoordinatorService::visit_of(const grpc::ServerContext& context, const char* call,
                                                       double cost) {
  Visit visit{caller_of(context), call};
  const auto& caller = visit.caller;
  if (is_named(caller, kOperatorName)) return visit;  // watches as often as it likes
  const auto name =
      caller.authenticated && !caller.names.empty() ? caller.names.front() : caller_network(caller.address);
  bool within = true;
  {
    const std::lock_guard lock(budget_mutex_);
    within = budget_.take(name, cost, clock_.now());
  }
  if (!within) std::this_thread::sleep_for(kOverBudgetWait);
  return visit;
}

Error CoordinatorService::refused(const Visit& visit, const std::string& reason) {
  apply({LogEvent{"refused", fmt::format("{} from {}: {}", visit.call, visit.caller.address, reason)}});
  return Error{reason};
}

Result<std::string> CoordinatorService::peer_of(const Visit& visit) {
  const auto& caller = visit.caller;
  if (!caller.authenticated) return refused(visit, "without a certificate; only Join works without one");
  const auto peer = caller.names.size() == 1 ? peer_of_name(caller.names.front()) : std::nullopt;
  if (!peer) return refused(visit, "the certificate is not a worker's");
  if (core_->is_revoked(*peer)) return refused(visit, fmt::format("{} was removed from this run", *peer));
  if (on_member_) on_member_(caller.address, caller.names.front());
  return *peer;
}

// A certificate of an earlier start does not count: restarting `serve` revokes it.
bool CoordinatorService::is_operator(const Caller& caller) const {
  if (!is_named(caller, kOperatorName) || caller.certificate_pem != door_.operator_pem) return false;
  if (on_member_) on_member_(caller.address, kOperatorName);
  return true;
}

Status CoordinatorService::require_operator(const Visit& visit) {
  if (is_operator(visit.caller)) return {};
  return refused(visit, "only the run's operator may do this, with the certificate in the run's folder");
}

Status CoordinatorService::require_member(const Visit& visit) {
  if (is_operator(visit.caller)) return {};
  TRY(peer_of(visit));
  return {};
}

Status CoordinatorService::may_tunnel(const wire::Hello& hello, const Caller& caller) {
  const std::lock_guard lock(mutex_);
  const Visit visit{caller, "Tunnel"};
  const auto peer = TRY(peer_of(visit));
  if (hello.run() != identity_.run) return refused(visit, "the tunnel is for another run");
  const auto allowed = core_->may_tunnel(peer, hello.boundary(), hello.epoch(), hello.dials());
  return allowed.ok() ? Status() : Status(refused(visit, allowed.error().message));
}

// An empty unit means the token table, which every stage holds.
Status CoordinatorService::may_fetch(const Visit& visit, const std::string& unit) {
  const std::lock_guard lock(mutex_);
  const auto peer = TRY(peer_of(visit));
  if (unit.empty() ? core_->seat_of(peer).has_value() : core_->holds_unit(peer, unit)) return {};
  return refused(visit, fmt::format("{} does not hold '{}'", peer, unit.empty() ? "the token table" : one_line(unit)));
}

Status CoordinatorService::may_read_tokens(const Visit& visit) {
  const std::lock_guard lock(mutex_);
  const auto peer = TRY(peer_of(visit));
  const auto seat = core_->seat_of(peer);
  if (seat && seat->stage == 0) return {};
  return refused(visit, fmt::format("{} does not hold the first stage", peer));
}

grpc::Status CoordinatorService::other_run(const std::string& run) const {
  return refusal(fmt::format("this is run {}, not {}", identity_.run, one_line(run)));
}

// ---- calls: every request may be hostile and is checked before it is used ----

grpc::Status CoordinatorService::GetRun(grpc::ServerContext* context, const control::RunRequest* request,
                                        control::RunDescription* reply) {
  const auto visit = visit_of(*context, "GetRun");
  const std::lock_guard lock(mutex_);
  const auto allowed = require_member(visit);
  if (!allowed) return denial(allowed.error());
  if (request->protocol() != kControlProtocol) return refusal(why_other_protocol(request->protocol()));
  describe_run(*reply);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Attend(grpc::ServerContext* context, Stream* stream) {
  const auto visit = visit_of(*context, "Attend");
  std::unique_lock lock(mutex_);
  const auto peer = peer_of(visit);
  if (!peer) return denial(peer.error());
  if (count_of(sessions_, peer.value()) >= kMostSessions) {
    return exhausted(refused(visit, fmt::format("{} has {} connections already", peer.value(), kMostSessions)));
  }
  const SessionId id = next_session_++;
  auto& session = sessions_[id];
  session.peer = peer.value();
  session.opened = clock_.now();
  session.context = context;
  lock.unlock();
  std::thread writer([&] { write_messages(session, *stream); });
  Pace pace(clock_);
  control::FromWorker message;
  while (stream->Read(&message)) {
    pace.note_message();
    const std::lock_guard handling(mutex_);
    session.said_hello = session.said_hello || message.has_hello();
    if (!session.closed) hear(id, visit, peer.value(), message);
  }
  lock.lock();
  session.closed = session.hung_up = true;
  changed_.notify_all();
  lock.unlock();
  writer.join();
  lock.lock();
  sessions_.erase(id);
  apply(core_->session_ended(id, clock_.now()));
  return grpc::Status::OK;
}

void CoordinatorService::hear(SessionId id, const Visit& visit, const std::string& peer,
                              const control::FromWorker& message) {
  if (message.has_hello() && message.hello().peer() != peer) {
    const auto error =
        refused(visit, fmt::format("calls itself {} with the certificate of {}", message.hello().peer(), peer));
    control::ToWorker answer;
    answer.mutable_refuse()->set_reason(error.message);
    return apply({SendTo{id, answer}, CloseSession{id, error.message}});
  }
  if (!message.has_refused()) return apply(core_->message(id, message, clock_.now()));
  const auto line = worker_refusals_.note(message.refused().reason(), clock_.now());
  if (!line) return;
  auto counted = message;
  counted.mutable_refused()->set_reason(*line);
  apply(core_->message(id, counted, clock_.now()));
}

// Writes the core's messages to a worker until the core closes the session or the worker is gone.
void CoordinatorService::write_messages(Session& session, Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return session.closed || !session.queue.empty(); });
    if (session.queue.empty()) break;
    const auto message = std::move(session.queue.front());
    session.queue.pop_front();
    lock.unlock();
    const bool written = stream.Write(message);
    lock.lock();
    if (!written) break;
  }
  session.closed = true;
  // The last message may say why. A worker that reads it hangs up; a cancelled stream may lose it.
  changed_.wait_for(lock, kCallFarewell, [&] { return session.hung_up; });
  lock.unlock();
  session.context->TryCancel();  // also ends the reads
}

grpc::Status CoordinatorService::PutFile(grpc::ServerContext* context, grpc::ServerReader<control::FilePart>* reader,
                                         control::FileTaken*) {
  const auto visit = visit_of(*context, "PutFile");
  std::unique_lock lock(mutex_);
  const auto peer = peer_of(visit);
  if (!peer) return denial(peer.error());
  if (count_of(uploads_, peer.value()) >= kMostUploads) {
    return exhausted(refused(visit, fmt::format("{} has {} uploads under way already", peer.value(), kMostUploads)));
  }
  const int64_t number = next_upload_++;
  uploads_[number] = {peer.value(), {}, clock_.now(), context};
  lock.unlock();
  control::FilePart part;
  grpc::Status status = refusal("a file's first part must name it");
  if (reader->Read(&part) && part.has_file()) {
    status = part.run() == identity_.run ? receive_file(visit, number, part, *reader) : other_run(part.run());
  }
  lock.lock();
  uploads_.erase(number);
  return status;
}

grpc::Status CoordinatorService::receive_file(const Visit& visit, int64_t upload, const control::FilePart& first,
                                              grpc::ServerReader<control::FilePart>& reader) {
  std::unique_lock lock(mutex_);
  const auto peer = uploads_.at(upload).peer;
  const auto file = first.file();
  if (!core_->saves_unit(peer, file.unit())) {
    return denial(refused(visit, fmt::format("{} does not save '{}'", peer, one_line(file.unit()))));
  }
  if (!core_->wants(file)) return grpc::Status::OK;  // too late: nothing is taken, and there is no need to try again
  uploads_.at(upload).file = file;
  const uint64_t most = most_unit_bytes(identity_.config, identity_.vocab, file.unit());
  if (file.bytes() > most) {
    const auto why = fmt::format("{}: {} bytes, and it has at most {}", file.unit(), file.bytes(), most);
    apply(core_->file_refused(peer, why, clock_.now()));
    return refusal(why);
  }
  lock.unlock();
  auto incoming =
      checkpoints_.receive_file({file.step(), file.generation()}, {file.unit(), file.bytes(), file.sha256()});
  if (!incoming) return refusal(incoming.error().message);
  auto part = first;
  do {
    if (const auto status = incoming.value().append(part.data()); !status) return refusal(status.error().message);
    lock.lock();
    uploads_.at(upload).moved = clock_.now();
    lock.unlock();
  } while (reader.Read(&part));
  const auto arrived = incoming.value().check();
  if (!arrived) return refusal(arrived.error().message);
  if (const auto status = check_content(arrived.value(), file); !status) {
    lock.lock();
    apply(core_->file_refused(peer, status.error().message, clock_.now()));
    return refusal(status.error().message);
  }
  // The caller may have lost its seat while it was sending.
  lock.lock();
  if (!core_->saves_unit(peer, file.unit()) || !core_->wants(file)) return grpc::Status::OK;
  if (const auto status = incoming.value().finish(); !status) return refusal(status.error().message);
  apply(core_->file_arrived(file, clock_.now()));
  return grpc::Status::OK;
}

Status CoordinatorService::check_content(const std::filesystem::path& path, const control::StateFile& file) const {
  const auto opened = SafetensorsFile::open(path);
  if (!opened) return Error{fmt::format("{}: it is not a safetensors file", file.unit())};
  const auto status = check_unit_file(identity_.config, identity_.vocab, file.unit(), file.step(), opened.value());
  if (!status) return Error{fmt::format("{}: {}", file.unit(), status.error().message)};
  const auto version = TRY(basis_version_of(opened.value()));
  if (version == file.basis_version()) return {};
  return Error{
      fmt::format("{}: has basis version {}, was announced with {}", file.unit(), version, file.basis_version())};
}

grpc::Status CoordinatorService::GetFile(grpc::ServerContext* context, const control::FileRequest* request,
                                         grpc::ServerWriter<control::FilePart>* writer) {
  const auto& file = request->file();
  if (const auto allowed = may_fetch(visit_of(*context, "GetFile"), file.unit()); !allowed) {
    return denial(allowed.error());
  }
  if (request->run() != identity_.run) return other_run(request->run());
  const CheckpointId id{file.step(), file.generation()};
  const bool is_table = file.unit().empty();
  const bool is_there = is_table ? identity_.table && file.sha256() == identity_.table->sha256
                                 : checkpoints_.holds(id, file.unit(), file.sha256());
  if (!is_there) return refusal(fmt::format("there is no file '{}' of step {}", one_line(file.unit()), file.step()));
  const auto mapped = MappedFile::open(is_table ? identity_.table_path : checkpoints_.path_of(id, file.unit()));
  if (!mapped) return refusal(mapped.error().message);
  auto left = mapped.value().bytes();
  left.remove_prefix(std::min<uint64_t>(left.size(), request->offset()));
  while (!left.empty()) {
    control::FilePart part;
    part.set_data(std::string(left.substr(0, kChunkBytes)));
    left.remove_prefix(std::min(left.size(), kChunkBytes));
    if (!writer->Write(part)) break;
  }
  return grpc::Status::OK;
}

bool CoordinatorService::has_windows(const control::WindowsRequest& request) const {
  const auto& train = identity_.config.train;
  const auto within = [](int64_t number, int64_t limit) { return 0 <= number && number < limit; };
  if (!request.validation()) {
    return within(request.step(), train.steps) && within(request.microbatch(), train.microbatches);
  }
  return request.count() >= 1 && request.count() <= train.microbatch &&
         within(request.first(), windows_.validation_windows() - request.count() + 1);
}

grpc::Status CoordinatorService::GetWindows(grpc::ServerContext* context, const control::WindowsRequest* request,
                                            control::Windows* reply) {
  const auto allowed = may_read_tokens(visit_of(*context, "GetWindows", kWindowsCost));
  if (!allowed) return denial(allowed.error());
  if (request->run() != identity_.run) return other_run(request->run());
  if (!has_windows(*request)) return refusal("this run has no such token windows");
  const auto ids = request->validation() ? windows_.validation(request->first(), request->count())
                                         : windows_.training(request->step(), request->microbatch());
  if (!ids) return refusal(ids.error().message);
  reply->mutable_ids()->Add(ids.value().begin(), ids.value().end());
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetStatus(grpc::ServerContext* context, const control::StatusRequest* request,
                                           control::RunStatus* reply) {
  const auto visit = visit_of(*context, "GetStatus");
  const std::lock_guard lock(mutex_);
  const auto allowed = require_member(visit);
  if (!allowed) return denial(allowed.error());
  core_->describe(*reply, clock_.now());
  const auto events = store_.events(request->events_after(), kMostEvents);
  if (!events) return {grpc::StatusCode::INTERNAL, events.error().message};
  reply->mutable_events()->Add(events.value().begin(), events.value().end());
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Control(grpc::ServerContext* context, const control::ControlRequest* request,
                                         control::ControlReply* reply) {
  const auto visit = visit_of(*context, "Control");
  const std::lock_guard lock(mutex_);
  const auto allowed = require_operator(visit);
  if (!allowed) return denial(allowed.error());
  if (request->what() == control::ControlRequest::KICK || request->what() == control::ControlRequest::UNKICK) {
    const auto said = shut_out_or_pardon(*request);
    if (!said) return refusal(said.error().message);
    reply->set_said(said.value());
    return grpc::Status::OK;
  }
  apply(core_->control(request->what(), clock_.now()));
  control::RunStatus status;
  core_->describe(status, clock_.now());
  reply->set_said(fmt::format("{} of {} steps: {}", status.step(), status.steps(), status.why()));
  return grpc::Status::OK;
}

Result<std::string> CoordinatorService::shut_out_or_pardon(const control::ControlRequest& request) {
  if (request.what() == control::ControlRequest::UNKICK) {
    const auto peer = TRY(peer_meant(request.peer(), core_->revoked()));
    apply(core_->pardon(peer, clock_.now()));
    return fmt::format("{} may take part again", peer);
  }
  const auto enrolled = TRY(store_.peers());
  std::set<std::string> names(enrolled.begin(), enrolled.end());
  control::RunStatus status;
  core_->describe(status, clock_.now());
  for (const auto& member : status.members()) names.insert(member.peer());
  for (const auto& peer : core_->revoked()) names.erase(peer);
  const auto peer = TRY(peer_meant(request.peer(), names));
  apply(core_->kick(peer, clock_.now()));
  return fmt::format("{} was removed from the run{}; `thinpipe unkick {}` lets it in again", peer, invite_of(peer),
                     peer);
}

// "; it came by invite 1a2b, ...", for the answer to kick. Empty if the peer came without an invite.
std::string CoordinatorService::invite_of(const std::string& peer) {
  const auto row = store_.peer_named(peer);
  if (!row || !row.value()) return "";
  const auto invites = store_.invites();
  if (!invites) return "";
  for (const auto& invite : invites.value()) {
    if (invite.id != row.value()->invite) continue;
    const auto came = fmt::format("; it came by invite {}", invite.id);
    if (!may_use(invite, wall_now()).ok()) return came + ", which nobody can use any more";
    return fmt::format("{}, which lets in {} more: `thinpipe invite --revoke {}` closes it", came, invite.uses_left,
                       invite.id);
  }
  return "";
}

void CoordinatorService::describe_run(control::RunDescription& run) const {
  run.set_build(THINPIPE_VERSION);
  run.set_run(identity_.run);
  run.set_config_toml(to_toml(identity_.config));
  run.set_vocab(identity_.vocab);
  run.set_corpus_id(identity_.corpus_id);
  run.set_config_sha256(config_identity(identity_.config));
  run.set_seed_numbers_sha256(identity_.seed_numbers_sha256);
  if (const auto& table = identity_.table) {
    run.mutable_table()->set_bytes(table->bytes);
    run.mutable_table()->set_sha256(table->sha256);
  }
}

void CoordinatorService::describe_offer(const control::JoinRequest& request, WallTime now,
                                        control::JoinReply& reply) const {
  const auto offer = core_->offer();
  describe_run(*reply.mutable_run());
  reply.set_protocol(kControlProtocol);
  reply.set_unix_time_us(std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
  if (offer.seat) reply.mutable_seat()->set_stage(offer.seat->stage);
  reply.set_why(offer.why);
  reply.set_state_bytes(offer.state_bytes + (identity_.table ? identity_.table->bytes : 0));
  reply.set_step_s(core_->step_seconds());
  reply.set_padding(std::string(request.padding_wanted(), '\0'));
}

grpc::Status CoordinatorService::Join(grpc::ServerContext* context, const control::JoinRequest* request,
                                      control::JoinReply* reply) {
  const auto visit = visit_of(*context, "Join");
  const std::lock_guard lock(mutex_);
  const auto now = wall_now();
  const auto no = [&](const std::string& reason) { return denial(refused(visit, reason)); };
  if (const auto status = admission_.admit_call(context->peer(), now); !status) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, refused(visit, status.error().message).message};
  }
  const auto invite = admission_.check(*request, now);
  if (!invite) return no(invite.error().message);
  if (request->padding_wanted() > kMaxPadding) return no(fmt::format("asks for more than {} bytes", kMaxPadding));
  describe_offer(*request, now, *reply);
  if (!request->enrol()) return grpc::Status::OK;
  if (request->protocol() != kControlProtocol) return no(why_other_protocol(request->protocol()));
  const auto enrolled = admission_.enrol(invite.value(), *request);
  if (!enrolled) return no(enrolled.error().message);
  const auto& peer = enrolled.value().peer;
  if (core_->is_revoked(peer)) return no(fmt::format("{} was removed from this run", peer));
  reply->set_peer(peer);
  reply->set_certificate(enrolled.value().certificate_pem);
  apply({LogEvent{"enrolled", fmt::format("{} from {}, by invite {}", peer, context->peer(), invite.value().id)}});
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Invite(grpc::ServerContext* context, const control::InviteRequest* request,
                                        control::InviteReply* reply) {
  const auto visit = visit_of(*context, "Invite");
  const std::lock_guard lock(mutex_);
  const auto allowed = require_operator(visit);
  if (!allowed) return denial(allowed.error());
  auto answer = admission_.manage(*request, addresses_, wall_now());
  if (!answer) return {grpc::StatusCode::INVALID_ARGUMENT, answer.error().message};
  *reply = std::move(answer.value());
  return grpc::Status::OK;
}

// ---- effects ----

void CoordinatorService::apply(Effects effects) {
  // Effects may lead to more (a manifest that was written); those come after all of these.
  while (!effects.empty()) {
    Effects more;
    for (const auto& effect : effects) {
      const auto status = carry_out(effect, more);
      if (status.ok()) continue;
      // Skip all later effects: a commit that is not on the disk must not be sent.
      more = core_->fail(status.error().message + full_disk_advice(identity_.folder));
      std::erase_if(more, [](const Effect& one) {
        return !std::holds_alternative<SendTo>(one) && !std::holds_alternative<Finish>(one);
      });
      break;
    }
    effects = std::move(more);
  }
  changed_.notify_all();
}

Status CoordinatorService::carry_out(const Effect& effect, Effects& more) {
  const auto session = [&](SessionId id, auto change) {
    if (const auto found = sessions_.find(id); found != sessions_.end()) change(found->second);
    return Status();
  };
  return std::visit(
      EffectCases{
          [&](const SendTo& one) { return send(one.session, one.message); },
          [&](const CloseSession& close) { return session(close.session, [](Session& one) { one.closed = true; }); },
          [&](const PersistEpoch& epoch) -> Status {
            TRY(store_.set_epoch(epoch));
            tunnels_.drop(epoch.epoch);
            return epoch.drop_from >= 0 ? logs_.rewrite(store_) : Status();
          },
          [&](const PersistCommit& commit) -> Status {
            TRY(store_.add_commit(commit.row));
            return logs_.catch_up(store_);
          },
          [&](const PersistEvaluation& evaluation) -> Status {
            TRY(store_.add_evaluation(evaluation));
            return logs_.catch_up(store_);
          },
          [&](const PersistPaused& paused) { return store_.set("paused", paused.paused ? "1" : "0"); },
          [&](const PersistRevoked& change) {
            return change.revoked ? store_.revoke_peer(change.peer) : store_.pardon_peer(change.peer);
          },
          [&](const PersistCuts& cuts) { return keep_cuts(cuts.cuts); },
          [&](const WriteManifest& manifest) {
            const auto status = write_manifest(manifest);
            auto effects = status.ok() ? core_->manifest_written(manifest.files, clock_.now())
                                       : core_->manifest_failed(
                                             status.error().message + full_disk_advice(identity_.folder), clock_.now());
            std::move(effects.begin(), effects.end(), std::back_inserter(more));
            return Status();
          },
          [&](const LogEvent& event) {
            const auto line =
                event.kind == "refused" ? door_refusals_.note(event.text, clock_.now()) : std::optional(event.text);
            if (!line) return Status();
            log_info("{}: {}", event.kind, *line);
            return store_.add_event(event.kind, *line);
          },
          [&](const Finish& finish) {
            end_ = finish;
            return Status();
          },
      },
      effect);
}

Status CoordinatorService::send(SessionId id, control::ToWorker message) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return {};
  if (message.has_run_step()) {
    const int64_t step = message.run_step().step();
    if (hashed_step_ != step) {
      std::vector<std::string> hashes;
      for (int64_t i = 0; i < identity_.config.train.microbatches; ++i) {
        const auto ids = TRY(windows_.training(step, i));
        hashes.push_back(ids_sha256(ids));
      }
      ids_sha256_ = std::move(hashes);
      hashed_step_ = step;
    }
    for (const auto& hash : ids_sha256_) message.mutable_run_step()->add_ids_sha256(hash);
  }
  found->second.queue.push_back(std::move(message));
  return {};
}

// Writes the cuts into the run's config, as if a person had set them.
Status CoordinatorService::keep_cuts(const std::vector<int64_t>& cuts) {
  identity_.config.pipeline.cuts = cuts;
  identity_.config.pipeline.auto_cuts = false;
  TRY(store_.set("cuts", cuts_text(cuts)));
  return write_file_atomically(identity_.folder / "config.toml", to_toml(identity_.config));
}

Status CoordinatorService::write_manifest(const WriteManifest& write) {
  const auto& first = write.files.front();
  CheckpointManifest manifest{identity_.run,         {first.step(), first.generation()},
                              identity_.corpus_id,   first.basis_hash(),
                              first.basis_version(), {}};
  for (const auto& file : write.files) {
    if (file.basis_hash() != manifest.basis_hash || file.basis_version() != manifest.basis_version) {
      return Error{"the stages saved different bases"};
    }
    manifest.files.push_back({file.unit(), file.bytes(), file.sha256()});
  }
  TRY(checkpoints_.commit(manifest));
  const auto& keep = identity_.config.checkpoint;
  return checkpoints_.keep(keep.keep_last, keep.keep_every);
}

}  // namespace thinpipe
