// Receiving, committing and removing checkpoints; checkpoint_store_reading.cc finds and verifies them.
#include "checkpoint/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/file_system.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kManifest = "manifest.json";
constexpr size_t kPieceBytes = size_t{1} << 20;

bool has_size(const fs::path& path, uint64_t bytes) {
  std::error_code code;
  return fs::is_regular_file(path, code) && fs::file_size(path, code) == bytes && !code;
}

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

Result<std::vector<fs::path>> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    entries.push_back(entry->path());
  }
  if (code) return Error{fmt::format("cannot read {}: {}", folder.string(), code.message())};
  return entries;
}

// Files of an earlier attempt, and transfers that nobody waits for any more.
Status remove_all_but_files_of(const CheckpointManifest& manifest, const fs::path& folder) {
  const auto entries = entries_of(folder);
  if (!entries) return entries.error();
  for (const auto& entry : entries.value()) {
    const auto belongs = [&entry](const CheckpointFile& file) { return file.name == entry.filename(); };
    if (std::any_of(manifest.files.begin(), manifest.files.end(), belongs)) continue;
    if (auto status = remove_tree(entry); !status) return status;
  }
  return {};
}

}  // namespace

// What this process has received for steps it has not committed. A step is here from its first receive_file() on.
struct CheckpointStore::Received {
  std::mutex mutex;
  std::map<int64_t, std::map<std::string, CheckpointFile>> files;
};

Status IncomingFile::append(std::string_view bytes) {
  if (!file_) return give_up("no more bytes are taken after an error or the end");
  if (bytes.size() > announced_.bytes - received_bytes_) {
    return give_up(fmt::format("more bytes came than the {} that were announced", announced_.bytes));
  }
  if (auto status = file_->append(bytes); !status) {
    file_.reset();
    return status;
  }
  hash_.update(bytes);
  received_bytes_ += bytes.size();
  return {};
}

Status IncomingFile::finish() {
  if (!file_) return give_up("it has ended before");
  if (received_bytes_ != announced_.bytes) {
    return give_up(fmt::format("{} bytes came, {} were announced", received_bytes_, announced_.bytes));
  }
  if (const auto hash = hash_.hex(); hash != announced_.sha256) {
    return give_up(fmt::format("damaged on its way: its sha256 is {}, announced was {}", hash, announced_.sha256));
  }
  Status status = store_->take_in(*this, *file_);
  file_.reset();
  return status;
}

Error IncomingFile::give_up(const std::string& message) {
  file_.reset();
  return Error{fmt::format("checkpoint of step {}: {}: {}", step_, announced_.name, message)};
}

CheckpointStore::CheckpointStore(fs::path folder, std::string run)
    : folder_(std::move(folder)), run_(std::move(run)), received_(std::make_unique<Received>()) {}
CheckpointStore::~CheckpointStore() = default;

fs::path CheckpointStore::folder_of(int64_t step) const { return checkpoint_step_folder(folder_, step); }
fs::path CheckpointStore::partial_of(int64_t step) const { return folder_ / fmt::format(".step-{:08}.partial", step); }
fs::path CheckpointStore::removed_of(int64_t step) const { return folder_ / fmt::format(".step-{:08}.removed", step); }
fs::path CheckpointStore::path_of(int64_t step, std::string_view name) const { return folder_of(step) / name; }

Result<IncomingFile> CheckpointStore::receive_file(int64_t step, const std::string& name, uint64_t bytes,
                                                   const std::string& sha256) {
  const auto refuse = [&](std::string_view message) {
    return Error{fmt::format("checkpoint of step {}: {}: {}", step, quoted_for_error(name), message)};
  };
  if (step < 0 || step > kMaxCheckpointStep)
    return refuse(fmt::format("needs a step from 0 to {}", kMaxCheckpointStep));
  if (!is_checkpoint_file_name(name)) return refuse("needs a plain file name of a-z, 0-9, '.' and '-'");
  if (!is_sha256_hex(sha256)) {
    return refuse(fmt::format("its sha256 is {}, needs 64 lower-case hex digits", quoted_for_error(sha256)));
  }
  const std::lock_guard lock(received_->mutex);
  const auto partial = partial_of(step);
  if (!received_->files.contains(step)) {
    // What lies there was left by another process, or by a checkpoint that was replaced.
    if (auto status = remove_leftover(partial); !status) return status.error();
  }
  if (auto status = make_directories(partial); !status) return status.error();
  auto file = AtomicFile::create(partial / name);
  if (!file) return file.error();
  received_->files.try_emplace(step);
  return IncomingFile(this, step, {name, bytes, sha256}, std::move(file).take());
}

Result<CheckpointFile> CheckpointStore::receive_copy(int64_t step, const fs::path& path) {
  const auto mapped = MappedFile::open(path);
  if (!mapped) return mapped.error();
  auto left = mapped.value().bytes();
  CheckpointFile file{path.filename().string(), left.size(), sha256_hex(left)};
  auto incoming = receive_file(step, file.name, file.bytes, file.sha256);
  if (!incoming) return incoming.error();
  while (!left.empty()) {
    if (auto status = incoming.value().append(left.substr(0, kPieceBytes)); !status) return status.error();
    left.remove_prefix(std::min(left.size(), kPieceBytes));
  }
  if (auto status = incoming.value().finish(); !status) return status.error();
  return file;
}

Status CheckpointStore::take_in(const IncomingFile& incoming, AtomicFile& file) {
  const std::lock_guard lock(received_->mutex);
  const auto found = received_->files.find(incoming.step_);
  if (found == received_->files.end()) {
    return Error{fmt::format("checkpoint of step {}: {}: comes too late: the step was committed or given up meanwhile",
                             incoming.step_, incoming.announced_.name)};
  }
  // If commit() fails halfway, which of the two has the name is not known: neither may be committed.
  found->second.erase(incoming.announced_.name);
  if (auto status = file.commit(); !status) return status;
  found->second.emplace(incoming.announced_.name, incoming.announced_);
  return {};
}

bool CheckpointStore::holds(int64_t step, const std::string& name, const std::string& sha256) const {
  {
    const std::lock_guard lock(received_->mutex);
    if (const auto found = received_->files.find(step); found != received_->files.end()) {
      const auto file = found->second.find(name);
      if (file != found->second.end() && file->second.sha256 == sha256) {
        return has_size(partial_of(step) / name, file->second.bytes);
      }
    }
  }
  const Found found = look_at(step);
  const auto& files = found.manifest.files;
  return found.state == Found::State::kWhole && std::any_of(files.begin(), files.end(), [&](const auto& file) {
           return file.name == name && file.sha256 == sha256;
         });
}

Status CheckpointStore::check_received(const CheckpointManifest& manifest) const {
  const auto refuse = [&manifest](const CheckpointFile& file, std::string_view message) {
    return Error{fmt::format("cannot commit the checkpoint of step {}: {} {}", manifest.step, file.name, message)};
  };
  const auto of_step = received_->files.find(manifest.step);
  for (const auto& file : manifest.files) {
    if (of_step == received_->files.end() || !of_step->second.contains(file.name)) {
      return refuse(file, "has not been received");
    }
    const auto& received = of_step->second.at(file.name);
    if (received != file) {
      return refuse(file, fmt::format("was received with {} bytes and sha256 {}, the manifest has {} and {}",
                                      received.bytes, received.sha256, file.bytes, file.sha256));
    }
    if (!has_size(partial_of(manifest.step) / file.name, file.bytes)) {
      return refuse(file, fmt::format("was received, but its {} bytes are no longer in {}", file.bytes,
                                      partial_of(manifest.step).string()));
    }
  }
  return {};
}

Status CheckpointStore::commit(const CheckpointManifest& manifest) {
  const std::string text = manifest_text(manifest);
  const auto as_read = parse_checkpoint_manifest(text, fmt::format("checkpoint of step {}", manifest.step));
  if (!as_read) return as_read.error();
  if (as_read.value() != manifest) {
    return Error{
        fmt::format("cannot commit the checkpoint of step {}: its run or machine is not UTF-8", manifest.step)};
  }
  if (manifest.run != run_) {
    return Error{fmt::format("cannot commit the checkpoint of step {}: it is of run {}, this store is of run {}",
                             manifest.step, quoted_for_error(manifest.run), quoted_for_error(run_))};
  }
  const std::lock_guard lock(received_->mutex);
  const auto partial = partial_of(manifest.step);
  if (is_there(folder_of(manifest.step))) {
    const Found old = look_at(manifest.step);
    if (old.state == Found::State::kOfAnotherRun) return Error{old.reason};
    const bool is_newer = old.manifest.generation > manifest.generation;
    const bool is_the_same = old.manifest.generation == manifest.generation && old.manifest.cuts == manifest.cuts;
    if (old.state == Found::State::kWhole && (is_newer || is_the_same)) {
      received_->files.erase(manifest.step);
      // An earlier commit() may have failed at just that.
      if (auto status = sync_directory(folder_); !status) return status;
      (void)remove_tree(partial);
      return {};
    }
  }
  if (auto status = check_received(manifest); !status) return status;
  if (auto status = remove_all_but_files_of(manifest, partial); !status) return status;
  if (auto status = write_file_atomically(partial / kManifest, text); !status) return status;
  if (auto status = move_into_place(manifest.step); !status) return status;
  received_->files.erase(manifest.step);
  if (auto status = sync_directory(folder_); !status) return status;
  // What was replaced, if anything, is under one of these. Hidden, it does no harm if it stays.
  (void)remove_tree(partial);
  (void)remove_tree(removed_of(manifest.step));
  return {};
}

Status CheckpointStore::move_into_place(int64_t step) {
  const auto partial = partial_of(step);
  const auto target = folder_of(step);
  if (!is_there(target)) return rename_path(partial, target);
  if (file_system().exchange(partial.string(), target.string()) == 0) return {};
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
    return Error{fmt::format("cannot replace {}: {}", target.string(), std::strerror(errno))};
  }
  // A disk that cannot exchange two folders: for a moment there is none of that step, and latest() is an earlier one.
  const auto removed = removed_of(step);
  if (auto status = remove_leftover(removed); !status) return status;
  if (auto status = rename_path(target, removed); !status) return status;
  if (auto status = rename_path(partial, target); !status) {
    (void)rename_path(removed, target);
    return status;
  }
  return {};
}

// What lies under a hidden name may have been a checkpoint until a rename that no sync has followed.
Status CheckpointStore::remove_leftover(const fs::path& path) {
  if (!is_there(path)) return {};
  if (auto status = sync_directory(folder_); !status) return status;
  return remove_tree(path);
}

// Hidden first, and that on the disk: a checkpoint that is half gone must not look like one.
Status CheckpointStore::remove(int64_t step) {
  const auto removed = removed_of(step);
  if (auto status = remove_leftover(removed); !status) return status;
  if (auto status = rename_path(folder_of(step), removed); !status) return status;
  return remove_leftover(removed);
}

Status CheckpointStore::keep(int64_t last_n, int64_t every_m) {
  TP_CHECK(last_n >= 1 && every_m >= 0, "keep({}, {})", last_n, every_m);
  const auto all = steps();
  if (!all) return all.error();
  std::vector<int64_t> old;
  int64_t kept = 0;
  for (const int64_t step : all.value()) {
    if (look_at(step).state != Found::State::kWhole || kept++ < last_n) continue;
    if (every_m == 0 || step % every_m != 0) old.push_back(step);
  }
  std::reverse(old.begin(), old.end());
  for (const int64_t step : old) {
    if (auto status = remove(step); !status) return status;
  }
  return {};
}

Status CheckpointStore::drop_after(int64_t step) {
  const auto all = steps();
  if (!all) return all.error();
  for (const int64_t newer : all.value()) {
    if (newer <= step || look_at(newer).state == Found::State::kOfAnotherRun) continue;
    if (auto status = remove(newer); !status) return status;
  }
  return {};
}

Status CheckpointStore::clean_partials() {
  const std::lock_guard lock(received_->mutex);
  received_->files.clear();
  if (!is_there(folder_)) return {};
  const auto entries = entries_of(folder_);
  if (!entries) return entries.error();
  for (const auto& entry : entries.value()) {
    const auto name = entry.filename().string();
    if (!name.starts_with(".step-") || !(name.ends_with(".partial") || name.ends_with(".removed"))) continue;
    if (auto status = remove_leftover(entry); !status) return status;
  }
  return {};
}

}  // namespace thinpipe
