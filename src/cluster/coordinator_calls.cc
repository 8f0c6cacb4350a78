// The coordinator's gRPC calls. Everything that comes in is a stranger's: checked before it is used, refused with the
// reason.
#include <fmt/format.h>

#include <cstring>
#include <thread>

#include "base/line.h"
#include "boundary/kernels/tensor_bytes.h"
#include "boundary/sizes.h"
#include "cluster/coordinator_service.h"
#include "net/tls.h"
#include "pipeline/table_file.h"

namespace thinpipe {
namespace {

// Parts of a file: large enough to be cheap, small enough to let other traffic through.
constexpr size_t kChunkBytes = 256 << 10;
constexpr auto kCallFarewell = std::chrono::seconds(2);

grpc::Status denial(const Error& error) { return {grpc::StatusCode::PERMISSION_DENIED, error.message}; }
grpc::Status refusal(const std::string& reason) { return {grpc::StatusCode::FAILED_PRECONDITION, reason}; }

}  // namespace

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

}  // namespace thinpipe
