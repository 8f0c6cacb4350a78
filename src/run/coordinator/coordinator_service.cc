#include "run/coordinator/coordinator_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "config/config_file.h"
#include "net/addresses.h"
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
// The first stage may ask for the tokens of every microbatch, and steps may be short.
constexpr double kWindowsCost = 0.02;

grpc::Status denial(const Error& error) { return {grpc::StatusCode::PERMISSION_DENIED, error.message}; }
grpc::Status refusal(const std::string& reason) { return {grpc::StatusCode::FAILED_PRECONDITION, reason}; }

grpc::Status exhausted(const Error& error) { return {grpc::StatusCode::RESOURCE_EXHAUSTED, error.message}; }

// For a start's revision: two starts never have the same.
uint64_t random_number() {
  uint64_t number = 0;
  const auto bytes = random_bytes(sizeof number);
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

WallTime wall_now() { return WallTime::clock::now(); }

// Writes the file from that offset on, until the caller is gone or goes_on() says no.
template <class GoesOn>
grpc::Status send_parts(const std::filesystem::path& path, uint64_t offset,
                        grpc::ServerWriter<control::FilePart>& writer, const GoesOn& goes_on) {
  const auto mapped = MappedFile::open(path);
  if (!mapped) return refusal(mapped.error().message);
  auto left = mapped.value().bytes();
  left.remove_prefix(std::min<uint64_t>(left.size(), offset));
  while (!left.empty() && goes_on()) {
    control::FilePart part;
    part.set_data(std::string(left.substr(0, kChunkBytes)));
    left.remove_prefix(std::min(left.size(), kChunkBytes));
    if (!writer.Write(part)) break;
  }
  return grpc::Status::OK;
}

// The run's authority puts one name into a certificate.
bool is_named(const Caller& caller, std::string_view name) {
  return caller.authenticated && caller.names.size() == 1 && caller.names.front() == name;
}

}  // namespace

// ---- start, and the calls of the program that serves the run ----

CoordinatorService::CoordinatorService(RunIdentity identity, RunDoor door, RunStore store, const TokenWindows& windows,
                                       const Clock& clock)
    : door_(std::move(door)),
      windows_(windows),
      clock_(clock),
      desk_(std::move(identity), std::move(store), clock, *this),
      admission_(desk_.identity().run, desk_.store(), door_.authority),
      tunnels_([this](const wire::Hello& hello, const Caller& caller) { return may_tunnel(hello, caller); },
               kPartnerPatience) {}

Status CoordinatorService::start() {
  const std::lock_guard lock(mutex_);
  return desk_.start(random_number());
}

bool CoordinatorService::complete() const {
  const std::lock_guard lock(mutex_);
  return desk_.is_complete();
}

control::RunStatus CoordinatorService::status() const {
  const std::lock_guard lock(mutex_);
  control::RunStatus status;
  desk_.core().describe(status, clock_.now());
  return status;
}

Status CoordinatorService::remember_port(int port) {
  const std::lock_guard lock(mutex_);
  return desk_.store().set("port", fmt::format("{}", port));
}

void CoordinatorService::tick() {
  const std::lock_guard lock(mutex_);
  desk_.tick();
  for (const int64_t upload : desk_.idle_uploads()) uploads_.at(upload)->TryCancel();
}

void CoordinatorService::stop_after_checkpoint() {
  const std::lock_guard lock(mutex_);
  desk_.control(control::ControlRequest::STOP);
}

std::optional<Finish> CoordinatorService::ended() const {
  const std::lock_guard lock(mutex_);
  return desk_.ended();
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

void CoordinatorService::give_model(std::vector<CheckpointFile> files) {
  const std::lock_guard lock(mutex_);
  model_.give(std::move(files), clock_.now());
}

size_t CoordinatorService::keepers() {
  const std::lock_guard lock(mutex_);
  return model_.keepers(clock_.now());
}

bool CoordinatorService::model_is_wanted() const {
  const std::lock_guard lock(mutex_);
  return model_.is_expected() || std::any_of(sessions_.begin(), sessions_.end(),
                                             [](const auto& session) { return session.second.keeps_model; });
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
  Duration wait{};
  {
    const std::lock_guard lock(budget_mutex_);
    wait = budget_.take(name, cost, clock_.now());
  }
  if (wait > Duration{}) std::this_thread::sleep_for(wait);
  return visit;
}

Error CoordinatorService::refused(const Visit& visit, const std::string& reason) {
  desk_.log("refused", fmt::format("{} from {}: {}", visit.call, visit.caller.address, reason));
  return Error{reason};
}

Result<std::string> CoordinatorService::peer_of(const Visit& visit) {
  const auto& caller = visit.caller;
  if (!caller.authenticated) return refused(visit, "without a certificate; only Join works without one");
  const auto peer = caller.names.size() == 1 ? peer_of_name(caller.names.front()) : std::nullopt;
  if (!peer) return refused(visit, "the certificate is not a worker's");
  if (const auto allowed = desk_.check_peer(*peer); !allowed) return refused(visit, allowed.error().message);
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
  if (hello.run() != desk_.identity().run) return refused(visit, "the tunnel is for another run");
  const auto allowed = desk_.core().may_tunnel(peer, hello.boundary(), hello.epoch(), hello.dials());
  return allowed.ok() ? Status() : Status(refused(visit, allowed.error().message));
}

Result<std::string> CoordinatorService::begin_download(const Visit& visit, const std::string& unit) {
  const std::lock_guard lock(mutex_);
  const bool of_model = GivenModel::is_name(unit);
  const auto peer = TRY(of_model ? may_keep(visit) : peer_of(visit));
  const auto allowed = of_model ? Status() : desk_.may_fetch(peer, unit);
  if (!allowed) return refused(visit, allowed.error().message);
  if (const auto opened = desk_.open_download(peer); !opened) return refused(visit, opened.error().message);
  return peer;
}

Status CoordinatorService::may_read_tokens(const Visit& visit) {
  const std::lock_guard lock(mutex_);
  const auto peer = TRY(peer_of(visit));
  const auto allowed = desk_.may_read_tokens(peer);
  return allowed.ok() ? Status() : Status(refused(visit, allowed.error().message));
}

Result<std::string> CoordinatorService::may_keep(const Visit& visit) {
  const auto peer = TRY(peer_of(visit));
  if (desk_.shares_model()) return peer;
  return refused(visit, "the organiser does not give this run's model to its members (cluster.share_model)");
}

grpc::Status CoordinatorService::other_run(const std::string& run) const {
  return refusal(fmt::format("this is run {}, not {}", desk_.identity().run, one_line(run)));
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
  const auto opened = desk_.open_session(peer.value());
  if (!opened) return exhausted(refused(visit, opened.error().message));
  const SessionId id = opened.value();
  auto& session = sessions_[id];
  session.context = context;
  lock.unlock();
  std::thread writer([&] { write_messages(session, *stream); });
  Pace pace(clock_.now());
  control::FromWorker message;
  while (stream->Read(&message)) {
    if (const auto wait = pace.take(message.ByteSizeLong(), clock_.now()); wait > Duration{}) {
      std::this_thread::sleep_for(wait);
    }
    const std::lock_guard handling(mutex_);
    if (message.has_hello()) session.keeps_model = message.hello().keeps_model() && desk_.shares_model();
    if (session.closed) continue;
    if (pace.is_flood(clock_.now())) {
      desk_.end_flood(id);
    } else {
      desk_.hear(id, message);
    }
  }
  lock.lock();
  session.closed = session.hung_up = true;
  changed_.notify_all();
  lock.unlock();
  writer.join();
  lock.lock();
  if (session.keeps_model && desk_.ended() && desk_.check_peer(peer.value())) {
    model_.expect(peer.value(), clock_.now());
  }
  sessions_.erase(id);
  changed_.notify_all();
  desk_.end_session(id);
  return grpc::Status::OK;
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
  const auto opened = desk_.open_upload(peer.value());
  if (!opened) return exhausted(refused(visit, opened.error().message));
  const int64_t upload = opened.value();
  uploads_[upload] = context;
  lock.unlock();
  control::FilePart part;
  grpc::Status status = refusal("a file's first part must name it");
  if (reader->Read(&part) && part.has_file()) {
    status = part.run() == desk_.identity().run ? receive_file(visit, upload, part, *reader) : other_run(part.run());
  }
  lock.lock();
  uploads_.erase(upload);
  desk_.close_upload(upload);
  return status;
}

grpc::Status CoordinatorService::receive_file(const Visit& visit, int64_t upload, const control::FilePart& first,
                                              grpc::ServerReader<control::FilePart>& reader) {
  std::unique_lock lock(mutex_);
  const auto file = first.file();
  if (const auto allowed = desk_.may_save(upload, file); !allowed) {
    return denial(refused(visit, allowed.error().message));
  }
  const auto expected = desk_.expect_file(upload, file);
  if (!expected) return refusal(expected.error().message);
  if (!expected.value()) return grpc::Status::OK;  // too late: there is no need to try again
  lock.unlock();
  auto incoming = desk_.receive(file);
  if (!incoming) return refusal(incoming.error().message);
  auto part = first;
  do {
    if (const auto status = incoming.value().append(part.data()); !status) return refusal(status.error().message);
    lock.lock();
    const auto noted = desk_.note_part(upload);
    lock.unlock();
    if (!noted) return refusal(noted.error().message);
  } while (reader.Read(&part));
  const auto arrived = incoming.value().check();
  if (!arrived) return refusal(arrived.error().message);
  const auto content = desk_.check_content(arrived.value(), file);
  lock.lock();
  const auto taken = desk_.end_file(upload, file, incoming.value(), content);
  return taken.ok() ? grpc::Status::OK : refusal(taken.error().message);
}

grpc::Status CoordinatorService::GetFile(grpc::ServerContext* context, const control::FileRequest* request,
                                         grpc::ServerWriter<control::FilePart>* writer) {
  const auto peer = begin_download(visit_of(*context, "GetFile"), request->file().unit());
  if (!peer) return denial(peer.error());
  const bool of_model = GivenModel::is_name(request->file().unit());
  const auto status = request->run() != desk_.identity().run ? other_run(request->run())
                      : of_model                             ? send_model_file(peer.value(), *request, *writer)
                                                             : send_unit(*request, *writer);
  const std::lock_guard lock(mutex_);
  desk_.close_download(peer.value());
  return status;
}

grpc::Status CoordinatorService::send_unit(const control::FileRequest& request,
                                           grpc::ServerWriter<control::FilePart>& writer) {
  const auto& file = request.file();
  const CheckpointId id{file.step(), file.generation()};
  const bool is_table = file.unit().empty();
  const bool is_there = is_table ? desk_.identity().table && file.sha256() == desk_.identity().table->sha256
                                 : desk_.checkpoints().holds(id, file.unit(), file.sha256());
  if (!is_there) return refusal(fmt::format("there is no file '{}' of step {}", one_line(file.unit()), file.step()));
  const auto path = is_table ? desk_.identity().table_path : desk_.checkpoints().path_of(id, file.unit());
  return send_parts(path, request.offset(), writer, [] { return true; });
}

grpc::Status CoordinatorService::send_model_file(const std::string& peer, const control::FileRequest& request,
                                                 grpc::ServerWriter<control::FilePart>& writer) {
  std::unique_lock lock(mutex_);
  const auto& file = request.file();
  const bool is_there = model_.holds(file.unit(), file.sha256());
  lock.unlock();
  if (!is_there) return refusal(fmt::format("the model has no file '{}'", one_line(file.unit())));
  return send_parts(desk_.identity().folder / file.unit(), request.offset(), writer, [&] {
    const std::lock_guard moving(mutex_);
    model_.note_moved(peer, clock_.now());
    return desk_.check_peer(peer).ok();  // it may have been kicked meanwhile
  });
}

grpc::Status CoordinatorService::GetModel(grpc::ServerContext* context, const control::ModelRequest* request,
                                          control::ModelFiles* reply) {
  const auto visit = visit_of(*context, "GetModel");
  const std::lock_guard lock(mutex_);
  const auto peer = may_keep(visit);
  if (!peer) return denial(peer.error());
  if (request->run() != desk_.identity().run) return other_run(request->run());
  const bool complete = desk_.is_complete() && !(desk_.ended() && desk_.ended()->failed);
  if (!desk_.ended() || !complete) return refusal("the run is not complete, so it has no finished model");
  if (request->have_it()) {
    model_.forget(peer.value());
    return grpc::Status::OK;
  }
  model_.note_moved(peer.value(), clock_.now());
  *reply = model_.describe();
  return grpc::Status::OK;
}

bool CoordinatorService::has_windows(const control::WindowsRequest& request) const {
  const auto& train = desk_.identity().config.train;
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
  if (request->run() != desk_.identity().run) return other_run(request->run());
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
  desk_.core().describe(*reply, clock_.now());
  const auto events = desk_.store().events(request->events_after(), kMostEvents);
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
  desk_.control(request->what());
  control::RunStatus status;
  desk_.core().describe(status, clock_.now());
  reply->set_said(fmt::format("{} of {} steps: {}", status.step(), status.steps(), status.why()));
  return grpc::Status::OK;
}

Result<std::string> CoordinatorService::shut_out_or_pardon(const control::ControlRequest& request) {
  if (request.what() == control::ControlRequest::UNKICK) {
    const auto peer = TRY(peer_meant(request.peer(), desk_.core().revoked()));
    desk_.pardon(peer);
    return fmt::format("{} may take part again", peer);
  }
  const auto enrolled = TRY(desk_.store().peers());
  std::set<std::string> names(enrolled.begin(), enrolled.end());
  control::RunStatus status;
  desk_.core().describe(status, clock_.now());
  for (const auto& member : status.members()) names.insert(member.peer());
  for (const auto& peer : desk_.core().revoked()) names.erase(peer);
  const auto peer = TRY(peer_meant(request.peer(), names));
  desk_.kick(peer);
  model_.forget(peer);
  return fmt::format("{} was removed from the run{}; `thinpipe unkick {}` lets it in again", peer, invite_of(peer),
                     peer);
}

// "; it came by invite 1a2b, ...", for the answer to kick. Empty if the peer came without an invite.
std::string CoordinatorService::invite_of(const std::string& peer) {
  const auto row = desk_.store().peer_named(peer);
  if (!row || !row.value()) return "";
  const auto invites = desk_.store().invites();
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
  run.set_run(desk_.identity().run);
  run.set_name(run_name(desk_.identity().folder));
  run.set_config_toml(to_toml(desk_.identity().config));
  run.set_vocab(desk_.identity().vocab);
  run.set_corpus_id(desk_.identity().corpus_id);
  run.set_config_sha256(config_identity(desk_.identity().config));
  run.set_shares_model(desk_.shares_model());
  run.set_seed_numbers_sha256(desk_.identity().seed_numbers_sha256);
  if (const auto& table = desk_.identity().table) {
    run.mutable_table()->set_bytes(table->bytes);
    run.mutable_table()->set_sha256(table->sha256);
  }
}

void CoordinatorService::describe_offer(const control::JoinRequest& request, WallTime now,
                                        control::JoinReply& reply) const {
  const auto offer = desk_.core().offer();
  describe_run(*reply.mutable_run());
  reply.set_protocol(kControlProtocol);
  reply.set_unix_time_us(std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
  if (offer.seat) reply.mutable_seat()->set_stage(offer.seat->stage);
  reply.set_why(offer.why);
  reply.set_state_bytes(offer.state_bytes + (desk_.identity().table ? desk_.identity().table->bytes : 0));
  reply.set_step_s(desk_.core().step_seconds());
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
  if (const auto allowed = desk_.check_peer(peer); !allowed) return no(allowed.error().message);
  reply->set_peer(peer);
  reply->set_certificate(enrolled.value().certificate_pem);
  desk_.log("enrolled", fmt::format("{} from {}, by invite {}", peer, context->peer(), invite.value().id));
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

// ---- the outbox of the desk ----

Status CoordinatorService::send(SessionId id, control::ToWorker message) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return {};
  if (message.has_run_step()) {
    const int64_t step = message.run_step().step();
    if (hashed_step_ != step) {
      std::vector<std::string> hashes;
      for (int64_t i = 0; i < desk_.identity().config.train.microbatches; ++i) {
        const auto ids = TRY(windows_.training(step, i));
        hashes.push_back(ids_sha256(ids));
      }
      ids_sha256_ = std::move(hashes);
      hashed_step_ = step;
    }
    for (const auto& hash : ids_sha256_) message.mutable_run_step()->add_ids_sha256(hash);
  }
  found->second.queue.push_back(std::move(message));
  changed_.notify_all();
  return {};
}

void CoordinatorService::close(SessionId id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second.closed = true;
  changed_.notify_all();
}

}  // namespace thinpipe
