#include "cluster/state_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <algorithm>
#include <fstream>

#include "base/files.h"
#include "base/log.h"
#include "checkpoint/checkpoint_manifest.h"
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

StateFiles::StateFiles(StateSource source) : source_(std::move(source)), line_(source_.coordinator) {}

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
  const auto hash = TRY(sha256_of_file(draft));
  std::error_code code;
  file.set_bytes(std::filesystem::file_size(draft, code));
  file.set_sha256(hash);
  const auto path = source_.folder / (file.sha256() + ".safetensors");
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
  const auto stub = line_.stub();
  const auto writer = stub->PutFile(&context, &taken);
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
  const auto path = source_.folder / (file.sha256() + ".safetensors");
  if (auto status = fetch_to(file, path); !status) return status.error();
  return path;
}

Status StateFiles::fetch_to(const control::StateFile& file, const std::filesystem::path& path) {
  if (!is_sha256_hex(file.sha256())) return Error{fmt::format("{} was announced without its hash", file.name())};
  if (auto status = make_directories(path.parent_path()); !status) return status;
  std::error_code ignored;
  if (const auto hash = sha256_of_file(path); hash && hash.value() == file.sha256()) return {};
  const auto part = path.parent_path() / (file.sha256() + ".part");
  if (auto status = download(file, part); !status) return status;
  const auto found = TRY(sha256_of_file(part));
  const auto bytes = std::filesystem::file_size(part, ignored);
  if (bytes != file.bytes() || found != file.sha256()) {
    std::filesystem::remove(part, ignored);  // going on with it would end the same way
    return Error{fmt::format("{} of step {} came with {} bytes and hash {}, needs {} bytes and {}", file.name(),
                             file.step(), bytes, found.substr(0, 12), file.bytes(), file.sha256().substr(0, 12))};
  }
  return rename_path(part, path);
}

// Goes on where an earlier attempt ended. An error is the disk's or the line's; the bytes are checked by the caller.
Status StateFiles::download(const control::StateFile& file, const std::filesystem::path& part_path) {
  std::error_code code;
  uint64_t there = std::filesystem::file_size(part_path, code);
  if (code || there > file.bytes()) there = 0;
  std::ofstream target(part_path, there > 0 ? std::ios::binary | std::ios::app : std::ios::binary | std::ios::trunc);
  if (!target) return Error{fmt::format("cannot write {}", part_path.string())};
  grpc::ClientContext context;
  control::FileRequest request;
  request.set_run(source_.run);
  request.set_offset(there);
  *request.mutable_file() = file;
  const auto stub = line_.stub();
  const auto reader = stub->GetFile(&context, request);
  control::FilePart part;
  while (target && there <= file.bytes() && reader->Read(&part)) {
    there += part.data().size();
    if (there <= file.bytes()) target.write(part.data().data(), static_cast<std::streamsize>(part.data().size()));
    if (source_.on_download) source_.on_download(there, file.bytes());
  }
  const bool whole = there == file.bytes();
  if (!whole) context.TryCancel();
  const auto status = reader->Finish();
  target.close();
  if (!target) return Error{fmt::format("cannot write {}: is the disk full?", part_path.string())};
  if (!whole && !status.ok()) {
    return Error{fmt::format("cannot fetch {} of step {}: {} ({} of {} bytes are here)", file.name(), file.step(),
                             status.error_message(), there, file.bytes())};
  }
  return {};
}

}  // namespace thinpipe
