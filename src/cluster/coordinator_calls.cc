// The coordinator's gRPC calls. Everything that comes in is a stranger's: checked before it is used, refused with the
// reason.
#include <fmt/format.h>

#include <cstring>
#include <thread>

#include "boundary/kernels/tensor_bytes.h"
#include "cluster/coordinator_service.h"
#include "config/config_file.h"

namespace thinpipe {
namespace {

// Parts of a file: large enough to be cheap, small enough to let other traffic through.
constexpr size_t kPartBytes = 256 << 10;

grpc::Status refusal(const std::string& reason) { return {grpc::StatusCode::FAILED_PRECONDITION, reason}; }

}  // namespace

grpc::Status CoordinatorService::GetRun(grpc::ServerContext*, const control::RunRequest* request,
                                        control::RunDescription* reply) {
  if (request->protocol() != kControlProtocol) {
    return refusal(fmt::format("this run needs protocol {}, not {}; install the same version of thinpipe on both sides",
                               kControlProtocol, request->protocol()));
  }
  reply->set_run(identity_.run);
  reply->set_config_toml(to_toml(identity_.config));
  reply->set_vocab(identity_.vocab);
  reply->set_corpus_id(identity_.corpus_id);
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::Attend(grpc::ServerContext* context,
                                        grpc::ServerReaderWriter<control::ToWorker, control::FromWorker>* stream) {
  std::unique_lock lock(mutex_);
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
    writing.unlock();
    context->TryCancel();  // ends the reads as well
  });
  control::FromWorker message;
  while (stream->Read(&message)) {
    const std::lock_guard handling(mutex_);
    if (!sessions_.at(id).closed) apply(core_->message(id, message, clock_.now()));
  }
  lock.lock();
  sessions_.at(id).closed = true;
  changed_.notify_all();
  lock.unlock();
  writer.join();
  lock.lock();
  sessions_.erase(id);
  apply(core_->session_ended(id, clock_.now()));
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::PutFile(grpc::ServerContext*, grpc::ServerReader<control::FilePart>* reader,
                                         control::FileTaken*) {
  control::FilePart part;
  if (!reader->Read(&part) || !part.has_file()) return refusal("a file's first part must name it");
  if (part.run() != identity_.run)
    return refusal(fmt::format("a file of run {}, this is {}", part.run(), identity_.run));
  const auto& file = part.file();
  const ArrivedFile arrived{file.step(),  part.generation(), part.stage(),         file.name(),
                            file.bytes(), file.sha256(),     part.basis_version(), part.basis_hash()};
  if (arrived.stage < 0 || arrived.stage >= identity_.config.pipeline.stages ||
      arrived.name != fmt::format("stage-{}.safetensors", arrived.stage)) {
    return refusal(fmt::format("file '{}' of stage {}: needs stage-N.safetensors of one of the {} stages", arrived.name,
                               arrived.stage, identity_.config.pipeline.stages));
  }
  auto incoming = checkpoints_.receive_file(arrived.step, arrived.name, arrived.bytes, arrived.sha256);
  if (!incoming) return refusal(incoming.error().message);
  do {
    if (auto status = incoming.value().append(part.data()); !status) return refusal(status.error().message);
  } while (reader->Read(&part));
  if (auto status = incoming.value().finish(); !status) return refusal(status.error().message);
  const std::lock_guard lock(mutex_);
  apply(core_->file_arrived(arrived, clock_.now()));
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetFile(grpc::ServerContext*, const control::FileRequest* request,
                                         grpc::ServerWriter<control::FilePart>* writer) {
  const auto& file = request->file();
  if (request->run() != identity_.run) return refusal("a file of another run was asked for");
  if (!is_checkpoint_file_name(file.name()) || file.step() < 0 || file.step() > kMaxCheckpointStep ||
      !checkpoints_.holds(file.step(), file.name(), file.sha256())) {
    return refusal(fmt::format("there is no such file '{}' of step {}", file.name(), file.step()));
  }
  const auto mapped = MappedFile::open(checkpoints_.path_of(file.step(), file.name()));
  if (!mapped) return refusal(mapped.error().message);
  auto left = mapped.value().bytes();
  while (!left.empty()) {
    control::FilePart part;
    part.set_data(std::string(left.substr(0, kPartBytes)));
    left.remove_prefix(std::min(left.size(), kPartBytes));
    if (!writer->Write(part)) break;
  }
  return grpc::Status::OK;
}

grpc::Status CoordinatorService::GetWindows(grpc::ServerContext*, const control::WindowsRequest* request,
                                            control::Windows* reply) {
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

grpc::Status CoordinatorService::GetStatus(grpc::ServerContext*, const control::StatusRequest* request,
                                           control::RunStatus* reply) {
  constexpr int64_t kMostEvents = 200;
  const std::lock_guard lock(mutex_);
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

grpc::Status CoordinatorService::Control(grpc::ServerContext*, const control::ControlRequest* request,
                                         control::ControlReply* reply) {
  const std::lock_guard lock(mutex_);
  apply(core_->control(request->what(), clock_.now()));
  control::RunStatus status;
  core_->describe(status, clock_.now());
  reply->set_said(fmt::format("{} of {} steps: {}", status.step(), status.steps(), status.why()));
  return grpc::Status::OK;
}

}  // namespace thinpipe
