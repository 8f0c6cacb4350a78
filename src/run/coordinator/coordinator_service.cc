#include "run/coordinator/coordinator_service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "boundary/kernels/tensor_bytes.h"
#include "boundary/sizes.h"
#include "config/config_file.h"
#include "net/tls.h"
#include "pipeline/seed_numbers.h"
#include "pipeline/stage_worker.h"
#include "pipeline/step.h"
#include "pipeline/table_file.h"
#include "plan/placement.h"
#include "run/run_changes.h"

namespace thinpipe {
namespace {

// A neighbour may be busy for as long as its state takes to download; a new epoch ends the wait.
constexpr auto kPartnerPatience = std::chrono::hours(2);
// Parts of a file: large enough to be cheap, small enough to let other traffic through.
constexpr size_t kChunkBytes = 256 << 10;
constexpr auto kCallFarewell = std::chrono::seconds(2);
constexpr uint32_t kMaxPadding = 1 << 20;

grpc::Status denial(const Error& error) { return {grpc::StatusCode::PERMISSION_DENIED, error.message}; }
grpc::Status refusal(const std::string& reason) { return {grpc::StatusCode::FAILED_PRECONDITION, reason}; }

WallTime wall_now() { return WallTime::clock::now(); }

// One name and no other: the run's authority gives no certificate more.
bool is_named(const LinkCaller& caller, std::string_view name) {
  return caller.authenticated && caller.names.size() == 1 && caller.names.front() == name;
}

std::string cuts_text(const std::vector<int64_t>& cuts) { return fmt::format("{}", fmt::join(cuts, " ")); }

// Seconds that a message is under way on the slowest cut, there and back on average.
double hop_seconds(const RunConfig& config, int64_t vocab) {
  double slowest = 0;
  const auto sizes = boundary_sizes(config, vocab);
  for (const auto& cut : link_settings(config)) {
    const auto one_way = [](const DirectionSettings& line, size_t bytes) {
      const double transfer =
          line.rate_bits_per_s > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(line.rate_bits_per_s) : 0;
      return transfer + seconds(line.delay) + seconds(line.jitter);
    };
    slowest = std::max(slowest, (one_way(cut.forward, sizes.forward) + one_way(cut.backward, sizes.backward)) / 2);
  }
  return slowest;
}

// A checkpoint's files as the core knows them.
std::vector<control::StateFile> files_of(const CheckpointManifest& manifest) {
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

CoordinatorService::CoordinatorService(RunIdentity identity, RunDoor door, RunStore store, BatchSource& batches,
                                       const Clock& clock)
    : identity_(std::move(identity)),
      seed_numbers_(seed_numbers_sha256(identity_.config, identity_.vocab)),
      door_(std::move(door)),
      store_(std::move(store)),
      admission_(identity_.run, store_, door_.authority),
      batches_(batches),
      clock_(clock),
      start_(clock.now()),
      checkpoints_(identity_.folder / "checkpoints", identity_.run),
      logs_(identity_.folder, {identity_.config.train.steps, identity_.config.train.eval_every}),
      tunnels_([this](const TunnelHello& hello, const LinkCaller& caller) { return may_tunnel(hello, caller); },
               kPartnerPatience) {}

CoordinatorService::~CoordinatorService() = default;

RunRules CoordinatorService::make_rules() const {
  const auto& config = identity_.config;
  const auto& train = config.train;
  RunRules rules;
  rules.run = identity_.run;
  rules.config_sha256 = config_identity(config);
  rules.open = door_.open;
  rules.seat = [this](const std::vector<Seat>& free, uint64_t memory_bytes) {
    return choose_seat(identity_.config, identity_.vocab, free, memory_bytes);
  };
  if (config.pipeline.auto_cuts) {
    rules.place = [this](const std::vector<Machine>& machines) {
      return place(identity_.config, identity_.vocab, machines);
    };
  }
  rules.model = config.model;
  rules.stages = config.pipeline.stages;
  rules.steps = train.steps;
  rules.tokens_per_step = tokens_per_step(train);
  rules.tokens_per_window = train.seq_len;
  rules.clip = config.optim.clip;
  rules.eval_every = train.eval_every;
  rules.eval_windows = std::min(train.eval_sequences, batches_.validation_windows());
  rules.final_windows = batches_.validation_windows();
  rules.checkpoint_every = config.checkpoint.every;
  rules.lease = std::chrono::seconds(config.cluster.lease_s);
  rules.max_failures = config.cluster.max_failures;
  rules.max_skipped = config.cluster.max_skipped;
  if (config.pipeline.schedule == ScheduleKind::k1f1b) {
    rules.microbatches = train.microbatches;
    rules.hop_s = hop_seconds(config, identity_.vocab);
    rules.packet_bytes = boundary_sizes(config, identity_.vocab).forward;
  }
  rules.metrics_line = [this](const CommitRow& row, const std::vector<control::Ready>& reports) {
    return metrics_line(identity_.config, row, reports).dump();
  };
  rules.timing_line = [this](const CommitRow& row, const std::vector<control::Ready>& reports) {
    auto line = timing_line(row.step, seconds(clock_.now() - start_), reports);
    uint64_t socket_bytes = 0, dropped = 0;
    for (const auto& report : reports) {
      socket_bytes += report.socket_bytes();
      dropped += report.dropped_packets();
    }
    line["socket_bytes"] = socket_bytes;
    line["dropped_packets"] = dropped;
    return line.dump();
  };
  return rules;
}

Result<std::optional<CheckpointManifest>> CoordinatorService::newest_checkpoint_of(int64_t committed) {
  auto manifest = TRY(checkpoints_.latest(committed));
  for (const auto& reason : checkpoints_.refusals()) {
    log_warn("{}", reason);
    TRY(store_.add_event("refused", reason));
  }
  return manifest;
}

Status CoordinatorService::start() {
  const std::lock_guard lock(mutex_);
  auto stored = TRY(store_.load());
  stored.cuts = identity_.config.pipeline.auto_cuts ? std::vector<int64_t>() : blocks_per_stage(identity_.config);
  TRY(checkpoints_.clean_partials());
  const auto found = TRY(newest_checkpoint_of(stored.committed));
  if (found) {
    stored.manifest_step = found->id.step;
    stored.manifest_files = files_of(*found);
  } else if (const auto origin = TRY(store_.get("begun_from"))) {
    return Error{fmt::format("{}: this run began from given weights ({}) and none of its checkpoints is whole",
                             identity_.folder.string(), *origin)};
  }
  // What workers hold is of the cuts they were told: with others, places are nobody's.
  if (!stored.cuts.empty()) {
    const auto cuts = cuts_text(stored.cuts);
    const auto before = TRY(store_.get("cuts"));
    if (before && *before != cuts) {
      const auto begun = TRY(store_.forget_holders());
      stored.epoch = stored.generation = begun;
      stored.roster.clear();
    }
    TRY(store_.set("cuts", cuts));
  }
  if (static_cast<int64_t>(stored.roster.size()) != identity_.config.pipeline.stages) stored.roster.clear();
  TRY(logs_.rewrite(store_));
  core_.emplace(make_rules(), std::move(stored), clock_.now());
  return {};
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

void CoordinatorService::announce(std::vector<std::string> addresses) {
  const std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

// ---- workers' and operators' calls: everything that comes in is a stranger's, checked before it is used ----

grpc::Status CoordinatorService::GetRun(grpc::ServerContext* context, const control::RunRequest* request,
                                        control::RunDescription* reply) {
  const std::lock_guard lock(mutex_);
  if (auto status = require_member(caller_of(*context), "GetRun"); !status) return denial(status.error());
  if (request->protocol() != kControlProtocol) {
    return refusal(fmt::format("this run needs protocol {}, not {}; install the same version of thinpipe on both sides",
                               kControlProtocol, request->protocol()));
  }
  describe_run(*reply);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Attend(grpc::ServerContext* context,
                                        grpc::ServerReaderWriter<control::ToWorker, control::FromWorker>* stream) {
  std::unique_lock lock(mutex_);
  const auto peer = peer_of(caller_of(*context), "Attend");
  if (!peer) return denial(peer.error());
  const SessionId id = next_session_++;
  sessions_[id].context = context;
  lock.unlock();
  // Writes what the core has for this worker; ends the stream when the core has closed it.
  std::thread writer([&] {
    std::unique_lock writing(mutex_);
    auto& session = sessions_.at(id);
    while (true) {
      changed_.wait(writing, [&] { return session.closed || !session.queue.empty(); });
      if (session.queue.empty()) break;
      const auto message = std::move(session.queue.front());
      session.queue.pop_front();
      writing.unlock();
      const bool written = stream->Write(message);
      writing.lock();
      if (!written) break;
    }
    session.closed = true;
    // The last message may be why: whoever reads it hangs up by itself, and a cancelled stream may lose it.
    changed_.wait_for(writing, kCallFarewell, [&] { return session.hung_up; });
    writing.unlock();
    context->TryCancel();  // ends the reads as well
  });
  control::FromWorker message;
  while (stream->Read(&message)) {
    const std::lock_guard handling(mutex_);
    if (sessions_.at(id).closed) continue;
    if (message.has_hello() && message.hello().peer() != peer.value()) {
      const auto reason =
          fmt::format("calls itself {} with the certificate of {}", message.hello().peer(), peer.value());
      refused(caller_of(*context), "Attend", reason);
      control::ToWorker answer;
      answer.mutable_refuse()->set_reason(reason);
      sessions_.at(id).queue.push_back(answer);
      sessions_.at(id).closed = true;
      changed_.notify_all();
      continue;
    }
    if (message.has_refused() && !refusals_.note("", clock_.now())) continue;
    apply(core_->message(id, message, clock_.now()));
  }
  lock.lock();
  sessions_.at(id).closed = true;
  sessions_.at(id).hung_up = true;
  changed_.notify_all();
  lock.unlock();
  writer.join();
  lock.lock();
  sessions_.erase(id);
  apply(core_->session_ended(id, clock_.now()));
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::PutFile(grpc::ServerContext* context, grpc::ServerReader<control::FilePart>* reader,
                                         control::FileTaken*) {
  std::unique_lock lock(mutex_);
  const auto peer = peer_of(caller_of(*context), "PutFile");
  if (!peer) return denial(peer.error());
  lock.unlock();
  control::FilePart part;
  if (!reader->Read(&part) || !part.has_file()) return refusal("a file's first part must name it");
  if (part.run() != identity_.run)
    return refusal(fmt::format("a file of run {}, this is {}", part.run(), identity_.run));
  const auto file = part.file();
  lock.lock();
  if (!core_->saves_unit(peer.value(), file.unit())) {
    return denial(refused(caller_of(*context), "PutFile",
                          fmt::format("'{}' is not of a stage that {} holds", one_line(file.unit()), peer.value())));
  }
  lock.unlock();
  auto incoming =
      checkpoints_.receive_file({file.step(), file.generation()}, {file.unit(), file.bytes(), file.sha256()});
  if (!incoming) return refusal(incoming.error().message);
  do {
    if (auto status = incoming.value().append(part.data()); !status) return refusal(status.error().message);
  } while (reader->Read(&part));
  if (auto status = incoming.value().finish(); !status) return refusal(status.error().message);
  lock.lock();
  apply(core_->file_arrived(file, clock_.now()));
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetFile(grpc::ServerContext* context, const control::FileRequest* request,
                                         grpc::ServerWriter<control::FilePart>* writer) {
  const auto& file = request->file();
  const auto& table = identity_.table;
  const bool is_table = file.unit().empty();
  {
    const std::lock_guard lock(mutex_);
    const auto peer = peer_of(caller_of(*context), "GetFile");
    if (!peer) return denial(peer.error());
    if (is_table ? !core_->holds_stage(peer.value()) : !core_->holds_unit(peer.value(), file.unit())) {
      return denial(refused(caller_of(*context), "GetFile",
                            fmt::format("'{}' is not of a stage that {} holds",
                                        is_table ? "the token table" : one_line(file.unit()), peer.value())));
    }
  }
  if (request->run() != identity_.run) return refusal("a file of another run was asked for");
  const CheckpointId id{file.step(), file.generation()};
  const bool is_there =
      is_table ? table && file.sha256() == table->sha256 : checkpoints_.holds(id, file.unit(), file.sha256());
  if (!is_there)
    return refusal(fmt::format("there is no such file '{}' of step {}", one_line(file.unit()), file.step()));
  const auto mapped = MappedFile::open(is_table ? table_path(identity_.folder, identity_.config.model.subspace.table)
                                                : checkpoints_.path_of(id, file.unit()));
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

grpc::Status CoordinatorService::GetWindows(grpc::ServerContext* context, const control::WindowsRequest* request,
                                            control::Windows* reply) {
  {
    const std::lock_guard lock(mutex_);
    const auto peer = peer_of(caller_of(*context), "GetWindows");
    if (!peer) return denial(peer.error());
    if (core_->holder(0) != peer.value()) {
      return denial(
          refused(caller_of(*context), "GetWindows", fmt::format("{} does not hold the first stage", peer.value())));
    }
  }
  const auto& train = identity_.config.train;
  if (request->run() != identity_.run) return refusal("windows of another run were asked for");
  const bool training = !request->validation();
  if (training ? request->step() < 0 || request->step() >= train.steps || request->microbatch() < 0 ||
                     request->microbatch() >= train.microbatches
               : request->first() < 0 || request->count() < 1 || request->count() > train.microbatch ||
                     request->first() > batches_.validation_windows() - request->count()) {
    return refusal("there are no such token windows in this run");
  }
  const std::lock_guard lock(batches_mutex_);
  const auto batch = training ? batches_.training(request->step(), request->microbatch())
                              : batches_.validation(request->first(), request->count());
  if (!batch) return refusal(batch.error().message);
  std::vector<std::byte> bytes(ids_bytes(batch.value().sequences(), train.seq_len, identity_.vocab));
  write_ids(batch.value().tokens, identity_.vocab, bytes);
  reply->set_ids(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetStatus(grpc::ServerContext* context, const control::StatusRequest* request,
                                           control::RunStatus* reply) {
  constexpr int64_t kMostEvents = 200;
  const std::lock_guard lock(mutex_);
  if (auto status = require_member(caller_of(*context), "GetStatus"); !status) return denial(status.error());
  core_->describe(*reply, clock_.now());
  const auto events = store_.events(request->events_after(), kMostEvents);
  if (!events) return {grpc::StatusCode::INTERNAL, events.error().message};
  for (const auto& event : events.value()) {
    auto& line = *reply->add_events();
    line.set_number(event.number);
    line.set_time(event.time);
    line.set_kind(event.kind);
    line.set_text(event.text);
  }
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Control(grpc::ServerContext* context, const control::ControlRequest* request,
                                         control::ControlReply* reply) {
  const std::lock_guard lock(mutex_);
  if (auto status = require_operator(caller_of(*context), "Control"); !status) return denial(status.error());
  if (request->what() == control::ControlRequest::KICK) {
    if (!is_peer_id(request->peer())) {
      return refusal(fmt::format("'{}' is no worker's name; `thinpipe status` shows them", request->peer()));
    }
    const bool known = core_->is_member(request->peer()) || store_.has_peer(request->peer()).take();
    apply(core_->kick(request->peer(), clock_.now()));
    reply->set_said(known ? fmt::format("{} was removed from the run", request->peer())
                          : fmt::format("nobody called {} has taken part; the name is shut out from now on "
                                        "(`thinpipe status` shows who is here)",
                                        request->peer()));
    return grpc::Status::OK;
  } else {
    apply(core_->control(request->what(), clock_.now()));
  }
  control::RunStatus status;
  core_->describe(status, clock_.now());
  reply->set_said(fmt::format("{} of {} steps: {}", status.step(), status.steps(), status.why()));
  return grpc::Status::OK;
}

// ---- the door: who is calling, and may they? A certificate proves a name; what the name may do, the roster says ----

Error CoordinatorService::refused(const LinkCaller& caller, const char* call, const std::string& reason) {
  const auto text = fmt::format("{} from {}: {}", call, caller.address, reason);
  if (const auto line = refusals_.note(text, clock_.now())) apply({LogEvent{"refused", *line}});
  return Error{reason};
}

Result<std::string> CoordinatorService::peer_of(const LinkCaller& caller, const char* call) {
  if (!caller.authenticated) return refused(caller, call, "without a certificate; only Join works without one");
  const auto peer = caller.names.size() == 1 ? peer_of_name(caller.names.front()) : std::nullopt;
  if (!peer) return refused(caller, call, "the certificate is not that of a worker");
  if (core_->is_revoked(*peer)) return refused(caller, call, fmt::format("{} was removed from this run", *peer));
  return *peer;
}

Status CoordinatorService::require_operator(const LinkCaller& caller, const char* call) {
  if (is_named(caller, kOperatorName)) return {};
  return refused(caller, call, "only the run's operator may, with the certificate in the run's folder");
}

Status CoordinatorService::require_member(const LinkCaller& caller, const char* call) {
  if (is_named(caller, kOperatorName)) return {};
  TRY(peer_of(caller, call));
  return {};
}

void CoordinatorService::describe_run(control::RunDescription& run) const {
  run.set_build(THINPIPE_VERSION);
  run.set_run(identity_.run);
  run.set_config_toml(to_toml(identity_.config));
  run.set_vocab(identity_.vocab);
  run.set_corpus_id(identity_.corpus_id);
  run.set_config_sha256(config_identity(identity_.config));
  run.set_seed_numbers_sha256(seed_numbers_);
  if (const auto& table = identity_.table) {
    run.mutable_table()->set_bytes(table->bytes);
    run.mutable_table()->set_sha256(table->sha256);
  }
}

grpc::Status CoordinatorService::Join(grpc::ServerContext* context, const control::JoinRequest* request,
                                      control::JoinReply* reply) {
  const std::lock_guard lock(mutex_);
  const auto now = wall_now();
  const auto no = [&](const std::string& reason) { return denial(refused(caller_of(*context), "Join", reason)); };
  if (auto status = admission_.admit_call(context->peer(), now); !status) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, refused(caller_of(*context), "Join", status.error().message).message};
  }
  const auto invite = admission_.check(*request, now);
  if (!invite) return no(invite.error().message);
  if (request->padding_wanted() > kMaxPadding) return no(fmt::format("at most {} bytes to measure with", kMaxPadding));
  const auto offer = core_->offer();
  describe_run(*reply->mutable_run());
  reply->set_protocol(kControlProtocol);
  reply->set_unix_time_us(std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count());
  if (offer.stage >= 0) reply->mutable_seat()->set_stage(offer.stage);
  reply->set_why(offer.why);
  reply->set_state_bytes(offer.state_bytes + (identity_.table ? identity_.table->bytes : 0));
  reply->set_step_s(core_->step_seconds());
  reply->set_padding(std::string(request->padding_wanted(), '\0'));
  if (!request->enrol()) return grpc::Status::OK;
  if (request->protocol() != kControlProtocol) {
    return no(fmt::format("speaks protocol {} and this run needs {}; install the same version of thinpipe",
                          request->protocol(), kControlProtocol));
  }
  const auto enrolled = admission_.enrol(invite.value(), *request);
  if (!enrolled) return no(enrolled.error().message);
  if (core_->is_revoked(enrolled.value().peer)) return no("was removed from this run");
  reply->set_peer(enrolled.value().peer);
  reply->set_certificate(enrolled.value().certificate_pem);
  apply({LogEvent{"enrolled",
                  fmt::format("{} from {}, by invite {}", enrolled.value().peer, context->peer(), invite.value().id)}});
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Invite(grpc::ServerContext* context, const control::InviteRequest* request,
                                        control::InviteReply* reply) {
  const std::lock_guard lock(mutex_);
  if (auto status = require_operator(caller_of(*context), "Invite"); !status) return denial(status.error());
  auto answer = admission_.manage(*request, addresses_, wall_now());
  if (!answer) return {grpc::StatusCode::INVALID_ARGUMENT, answer.error().message};
  *reply = std::move(answer.value());
  return grpc::Status::OK;
}

Status CoordinatorService::may_tunnel(const TunnelHello& hello, const LinkCaller& caller) {
  const std::lock_guard lock(mutex_);
  const auto peer = TRY(peer_of(caller, "Tunnel"));
  if (hello.run != identity_.run) return refused(caller, "Tunnel", "of another run");
  const auto allowed = core_->may_tunnel(peer, hello.boundary, hello.epoch, hello.dials);
  return allowed.ok() ? Status() : Status(refused(caller, "Tunnel", allowed.error().message));
}

// ---- effects ----

void CoordinatorService::apply(Effects effects) {
  // Effects may lead to more (a manifest that was written); they come after all of these.
  while (!effects.empty()) {
    Effects more;
    for (const auto& effect : effects) {
      auto status = carry_out(effect, more);
      if (status.ok()) continue;
      // Nothing after this one may happen: a commit that is not on the disk must not be sent.
      more = core_->fail(status.error().message);
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
  const auto append = [&](Effects effects) { std::move(effects.begin(), effects.end(), std::back_inserter(more)); };
  if (const auto* send = std::get_if<SendTo>(&effect)) {
    if (const auto found = sessions_.find(send->session); found != sessions_.end()) {
      found->second.queue.push_back(send->message);
    }
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    if (const auto found = sessions_.find(close->session); found != sessions_.end()) found->second.closed = true;
  } else if (const auto* epoch = std::get_if<PersistEpoch>(&effect)) {
    TRY(store_.set_epoch(*epoch));
    tunnels_.drop(epoch->epoch);
    if (epoch->drop_from >= 0) return logs_.rewrite(store_);
  } else if (const auto* commit = std::get_if<PersistCommit>(&effect)) {
    TRY(store_.add_commit(commit->row));
    return logs_.catch_up(store_);
  } else if (const auto* evaluation = std::get_if<PersistEvaluation>(&effect)) {
    TRY(store_.add_evaluation({evaluation->step, evaluation->loss, evaluation->is_final}));
    return logs_.catch_up(store_);
  } else if (const auto* paused = std::get_if<PersistPaused>(&effect)) {
    return store_.set("paused", paused->paused ? "1" : "0");
  } else if (const auto* revoked = std::get_if<PersistRevoked>(&effect)) {
    return store_.revoke_peer(revoked->peer);
  } else if (const auto* cuts = std::get_if<PersistCuts>(&effect)) {
    return keep_cuts(cuts->cuts);
  } else if (const auto* manifest = std::get_if<WriteManifest>(&effect)) {
    const auto status = write_manifest(*manifest);
    append(status.ok() ? core_->manifest_written(manifest->files, clock_.now())
                       : core_->manifest_failed(status.error().message, clock_.now()));
  } else if (const auto* event = std::get_if<LogEvent>(&effect)) {
    log_info("{}: {}", event->kind, event->text);
    TRY(store_.add_event(event->kind, event->text));
  } else if (const auto* finish = std::get_if<Finish>(&effect)) {
    end_ = *finish;
  }
  return {};
}

// Into the run's own config, as if a person had written them there.
Status CoordinatorService::keep_cuts(const std::vector<int64_t>& cuts) {
  identity_.config.pipeline.cuts = cuts;
  identity_.config.pipeline.auto_cuts = false;
  TRY(store_.set("cuts", cuts_text(cuts)));
  return write_file_atomically(identity_.folder / "config.toml", to_toml(identity_.config));
}

Status CoordinatorService::write_manifest(const WriteManifest& write) {
  const auto& config = identity_.config;
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
  return checkpoints_.keep(config.checkpoint.keep_last, config.checkpoint.keep_every);
}

Status CoordinatorService::write_model() const {
  const auto found = TRY(checkpoint_of_step(identity_.folder, identity_.config.train.steps));
  return write_model_file(found.files, identity_.folder / "model.safetensors");
}

}  // namespace thinpipe
