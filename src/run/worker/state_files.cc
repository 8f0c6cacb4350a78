#include "run/worker/state_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <algorithm>
#include <fstream>

#include "base/files.h"
#include "base/line.h"
#include "base/log.h"
#include "plan/machine.h"
#include "store/manifest.h"

namespace thinpipe {
namespace {

constexpr size_t kPartBytes = 128 << 10;

std::string name_of(const control::StateFile& file) {
  if (file.unit().empty()) return "the token table";
  if (file.unit().find('.') != std::string::npos) return one_line(file.unit());  // of the finished model
  return fmt::format("{} of step {}", file.unit(), file.step());
}

}  // namespace

struct StateFiles::Job {
  control::StateFile common;  // the fields that all files of this checkpoint share
  std::vector<UnitState> units;
};

// A unit in the worker's folder.
struct StateFiles::Written {
  control::StateFile file;
  std::filesystem::path path;
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

Status StateFiles::save(StageWorker& worker, const std::vector<std::string>& units, const control::Save& save) {
  give_up();  // an older save may still be retrying
  give_up_ = false;
  Job job;
  job.common.set_step(save.step());
  job.common.set_generation(save.generation());
  job.common.set_basis_version(worker.basis_version());
  job.common.set_basis_hash(worker.current_basis_hash());
  job.units = worker.state();
  std::erase_if(job.units,
                [&](const UnitState& one) { return std::find(units.begin(), units.end(), one.unit) == units.end(); });
  uint64_t bytes = 0;
  for (const auto& unit : job.units) {
    for (const auto& [name, tensor] : unit.tensors) bytes += tensor.nbytes();
  }
  // Needs memory for the copy, and as much again for the steps meanwhile.
  const bool beside = source_.mode == CheckpointMode::kAsync ||
                      (source_.mode == CheckpointMode::kAuto && available_memory_bytes() > 2 * bytes);
  if (!beside) return write_and_send(job);
  for (auto& unit : job.units) {
    for (auto& [name, tensor] : unit.tensors) tensor = tensor.clone();
  }
  writer_ = std::thread([this, job = std::move(job)] {
    if (const auto status = write_and_send(job); !status) source_.on_failure(status.error().message);
  });
  return {};
}

Result<StateFiles::Written> StateFiles::write(const Job& job, const UnitState& unit) {
  TRY(make_directories(source_.folder));
  const auto draft = source_.folder / "draft.safetensors";
  auto metadata = unit.metadata;
  metadata["run"] = source_.run;
  TRY(save_tensors(draft, unit.tensors, metadata));
  Written written{job.common, {}};
  written.file.set_unit(unit.unit);
  written.file.set_sha256(TRY(sha256_of_file(draft)));
  std::error_code code;
  written.file.set_bytes(std::filesystem::file_size(draft, code));
  if (code) return Error{fmt::format("cannot read {}: {}", draft.string(), code.message())};
  written.path = own_copy(written.file);
  TRY(rename_path(draft, written.path));
  if (source_.on_saved) source_.on_saved();
  return written;
}

// Returns only disk errors. Retries until the next save if the coordinator cannot be reached.
Status StateFiles::write_and_send(const Job& job) {
  std::vector<Written> files;
  for (const auto& unit : job.units) files.push_back(TRY(write(job, unit)));
  forget_older(files);
  for (const auto& written : files) {
    for (auto status = send(written); !status; status = send(written)) {
      log_warn("checkpoint: {}", status.error().message);
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::milliseconds(200), [&] { return give_up_; })) return {};
    }
  }
  return {};
}

std::filesystem::path StateFiles::own_copy(const control::StateFile& file) const {
  return source_.folder / (file.sha256() + ".safetensors");
}

// Keeps these files and those before them: the last whole checkpoint may be either. Ignores the files' times, which are
// out of order if the clock was set back.
void StateFiles::forget_older(const std::vector<Written>& files) {
  std::set<std::filesystem::path> keep;
  {
    const std::lock_guard lock(mutex_);
    keep.swap(latest_);
    for (const auto& written : files) latest_.insert(written.path);
    keep.insert(latest_.begin(), latest_.end());
  }
  std::error_code ignored;
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(source_.folder, ignored)) {
    if (entry.path().extension() == ".safetensors" && !keep.contains(entry.path())) old.push_back(entry.path());
  }
  for (const auto& path : old) std::filesystem::remove(path, ignored);
}

Status StateFiles::send(const Written& written) {
  const auto mapped = TRY(MappedFile::open(written.path));
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  control::FileTaken taken;
  const auto stub = line_.stub();
  const auto writer = stub->PutFile(&context, &taken);
  control::FilePart part;
  *part.mutable_file() = written.file;
  part.set_run(source_.run);
  auto left = mapped.bytes();
  do {
    part.set_data(std::string(left.substr(0, kPartBytes)));
    left.remove_prefix(std::min(left.size(), kPartBytes));
    if (!writer->Write(part)) break;
    if (source_.on_saved) source_.on_saved();
    part.Clear();
    const std::lock_guard lock(mutex_);
    if (give_up_) context.TryCancel();
  } while (!left.empty());
  writer->WritesDone();
  const auto status = writer->Finish();
  if (status.ok()) return {};
  return Error{fmt::format("the coordinator did not take {}: {}", written.file.unit(), status.error_message())};
}

Result<std::map<std::string, SafetensorsFile>> StateFiles::fetch(const std::vector<control::StateFile>& files) {
  give_up();  // a save of the state that is now replaced: it would remove these files as old ones
  std::map<std::string, SafetensorsFile> units;
  std::set<std::filesystem::path> copies;
  for (const auto& file : files) {
    TRY(fetch_to(file, own_copy(file)));
    units.emplace(file.unit(), TRY(SafetensorsFile::open(own_copy(file))));
    copies.insert(own_copy(file));
  }
  const std::lock_guard lock(mutex_);
  latest_ = std::move(copies);
  return units;
}

Status StateFiles::fetch_to(const control::StateFile& file, const std::filesystem::path& path) {
  if (!is_sha256_hex(file.sha256())) return Error{fmt::format("{} was announced without its hash", name_of(file))};
  TRY(make_directories(path.parent_path()));
  std::error_code ignored;
  if (const auto hash = sha256_of_file(path); hash && hash.value() == file.sha256()) return {};
  const auto part = path.parent_path() / (file.sha256() + ".part");
  TRY(download(file, part));
  const auto bytes = std::filesystem::file_size(part, ignored);
  const auto found = TRY(sha256_of_file(part));
  if (bytes == file.bytes() && found == file.sha256()) return rename_path(part, path);
  std::filesystem::remove(part, ignored);  // resuming it would fail the same way
  return Error{fmt::format("{} came with {} bytes and hash {}, needs {} bytes and {}", name_of(file), bytes,
                           found.substr(0, 12), file.bytes(), file.sha256().substr(0, 12))};
}

// Resumes where an earlier attempt ended. Returns errors of the disk and the line; the caller checks the bytes.
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
  const std::stop_callback stopped(source_.stop, [&context] { context.TryCancel(); });
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
    return Error{fmt::format("cannot fetch {}: {} ({} of {} bytes are here)", name_of(file), status.error_message(),
                             there, file.bytes())};
  }
  return {};
}

}  // namespace thinpipe
