#include "cluster/state_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <algorithm>

#include "base/files.h"
#include "base/log.h"
#include "base/sha256.h"
#include "cluster/control_client.h"
#include "plan/machine.h"

namespace thinpipe {
namespace {

constexpr size_t kPartBytes = 256 << 10;
// Own copies kept: the last one that may become a manifest, and the one before.
constexpr size_t kOwnCopies = 2;

}  // namespace

struct StateFiles::Job {
  int64_t stage;
  control::Save save;
  NamedTensors tensors;
  SafetensorsMetadata metadata;
  int64_t basis_version;
  std::string basis_hash;
};

StateFiles::StateFiles(StateSource source)
    : source_(std::move(source)), stub_(control::Coordinator::NewStub(control_channel(source_.coordinator))) {}

StateFiles::~StateFiles() { give_up(); }

void StateFiles::give_up() {
  {
    const std::lock_guard lock(mutex_);
    give_up_ = true;
    changed_.notify_all();
  }
  if (writer_.joinable()) writer_.join();
}

Status StateFiles::save(StageWorker& worker, int64_t stage, const control::Save& save) {
  give_up();  // an older one that is still trying
  give_up_ = false;
  Job job{stage, save, worker.state(), worker.state_metadata(), worker.basis_version(), worker.current_basis_hash()};
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : job.tensors) bytes += tensor.nbytes();
  // The memory plan: the copy, and as much again for the steps beside it.
  const bool beside = source_.mode == CheckpointMode::kAsync ||
                      (source_.mode == CheckpointMode::kAuto && available_memory_bytes() > 2 * bytes);
  if (!beside) return write_and_send(job);
  for (auto& [name, tensor] : job.tensors) tensor = tensor.clone();
  writer_ = std::thread([this, job = std::move(job)] {
    if (const auto status = write_and_send(job); !status) source_.on_failure(status.error().message);
  });
  return {};
}

Result<std::filesystem::path> StateFiles::write(const Job& job, control::StateFile& file) {
  if (auto status = make_directories(source_.folder); !status) return status.error();
  const auto draft = source_.folder / "draft.safetensors";
  auto metadata = job.metadata;
  metadata["run"] = source_.run;
  if (auto status = save_tensors(draft, job.tensors, metadata); !status) return status.error();
  file.set_step(job.save.step());
  file.set_name(fmt::format("stage-{}.safetensors", job.stage));
  {
    const auto mapped = MappedFile::open(draft);
    if (!mapped) return mapped.error();
    file.set_bytes(mapped.value().bytes().size());
    file.set_sha256(sha256_hex(mapped.value().bytes()));
  }
  const auto path = source_.folder / (file.sha256() + ".safetensors");
  std::error_code code;
  std::filesystem::rename(draft, path, code);
  if (code) return Error{fmt::format("cannot rename {}: {}", draft.string(), code.message())};
  forget_older(path);
  return path;
}

// An error is the disk's. A coordinator that cannot be reached is asked again until the next save, or the end.
Status StateFiles::write_and_send(const Job& job) {
  control::StateFile file;
  const auto path = write(job, file);
  if (!path) return path.error();
  while (true) {
    const auto status = send(job, file, path.value());
    if (status.ok()) return {};
    log_warn("checkpoint: {}", status.error().message);
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::milliseconds(200), [&] { return give_up_; })) return {};
  }
}

void StateFiles::forget_older(const std::filesystem::path& newest) {
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(source_.folder, ignored)) {
    if (entry.path().extension() == ".safetensors" && entry.path() != newest) {
      files.emplace_back(entry.last_write_time(ignored), entry.path());
    }
  }
  std::sort(files.rbegin(), files.rend());
  for (size_t i = kOwnCopies - 1; i < files.size(); ++i) std::filesystem::remove(files[i].second, ignored);
}

Status StateFiles::send(const Job& job, const control::StateFile& file, const std::filesystem::path& path) {
  const auto mapped = MappedFile::open(path);
  if (!mapped) return mapped.error();
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  control::FileTaken taken;
  const auto writer = stub_->PutFile(&context, &taken);
  control::FilePart part;
  *part.mutable_file() = file;
  part.set_run(source_.run);
  part.set_generation(job.save.generation());
  part.set_stage(job.stage);
  part.set_basis_version(job.basis_version);
  part.set_basis_hash(job.basis_hash);
  auto left = mapped.value().bytes();
  do {
    part.set_data(std::string(left.substr(0, kPartBytes)));
    left.remove_prefix(std::min(left.size(), kPartBytes));
    if (!writer->Write(part)) break;
    part.Clear();
    const std::lock_guard lock(mutex_);
    if (give_up_) context.TryCancel();
  } while (!left.empty());
  writer->WritesDone();
  const auto status = writer->Finish();
  if (!status.ok())
    return Error{fmt::format("the coordinator did not take {}: {}", file.name(), status.error_message())};
  return {};
}

Result<std::filesystem::path> StateFiles::fetch(const control::StateFile& file) {
  if (auto status = make_directories(source_.folder); !status) return status.error();
  const auto path = source_.folder / (file.sha256() + ".safetensors");
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    const auto mapped = MappedFile::open(path);
    if (mapped && sha256_hex(mapped.value().bytes()) == file.sha256()) return path;
  }
  if (auto status = download(file, path); !status) return status.error();
  return path;
}

Status StateFiles::download(const control::StateFile& file, const std::filesystem::path& path) {
  grpc::ClientContext context;
  control::FileRequest request;
  request.set_run(source_.run);
  *request.mutable_file() = file;
  const auto reader = stub_->GetFile(&context, request);
  auto target = AtomicFile::create(path);
  if (!target) return target.error();
  Sha256 hash;
  uint64_t received = 0;
  control::FilePart part;
  Status written;
  while (written.ok() && reader->Read(&part)) {
    received += part.data().size();
    if (received > file.bytes()) break;
    hash.update(part.data());
    written = target.value().append(part.data());
  }
  if (!written.ok() || received > file.bytes()) context.TryCancel();
  const auto status = reader->Finish();
  if (!written.ok()) return written;
  if (!status.ok() && received <= file.bytes()) {
    return Error{fmt::format("cannot fetch {} of step {}: {}", file.name(), file.step(), status.error_message())};
  }
  const auto found = hash.hex();
  if (received != file.bytes() || found != file.sha256()) {
    return Error{fmt::format("{} of step {} came with {} bytes and hash {}, needs {} bytes and {}", file.name(),
                             file.step(), received, found.substr(0, 12), file.bytes(), file.sha256().substr(0, 12))};
  }
  return target.value().commit();
}

}  // namespace thinpipe
