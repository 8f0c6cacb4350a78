#include "store/checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "store/safetensors.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kManifest = "manifest.json";
constexpr size_t kPieceBytes = size_t{1} << 20;

// ---- names ----

std::string name_of(CheckpointId id) { return fmt::format("step-{:08}-g{}", id.step, id.generation); }

bool is_there(const fs::path& path) {
  std::error_code code;
  return fs::exists(fs::symlink_status(path, code));
}

Result<std::vector<fs::path>> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code code;
  fs::directory_iterator entry(folder, code);
  if (code == std::errc::no_such_file_or_directory) return entries;
  for (const fs::directory_iterator end; !code && entry != end; entry.increment(code)) {
    entries.push_back(entry->path());
  }
  if (code) return Error{fmt::format("cannot read {}: {}", folder.string(), code.message())};
  return entries;
}

// All that have a folder, newest first; empty if `folder` does not exist.
Result<std::vector<CheckpointId>> checkpoints_in(const fs::path& folder) {
  std::vector<CheckpointId> ids;
  for (const auto& entry : TRY(entries_of(folder))) {
    if (const auto id = checkpoint_id(entry.filename().string())) ids.push_back(*id);
  }
  std::sort(ids.rbegin(), ids.rend());
  return ids;
}

// ---- reading files that may be damaged ----

// Only for regular files; opening anything else might wait for ever.
Result<uint64_t> size_of(const fs::path& path) {
  std::error_code code;
  const auto status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found) return Error{fmt::format("{}: is missing", path.string())};
  if (!fs::is_regular_file(status)) return Error{fmt::format("{}: is not a regular file", path.string())};
  const uint64_t bytes = fs::file_size(path, code);
  if (code) return Error{fmt::format("cannot read {}: {}", path.string(), code.message())};
  return bytes;
}

Status check_size(const fs::path& path, uint64_t needed) {
  const uint64_t bytes = TRY(size_of(path));
  if (bytes == needed) return {};
  return Error{fmt::format("{}: {}: has {} bytes, needs {}", path.string(), bytes < needed ? "truncated" : "too long",
                           bytes, needed)};
}

// The manifest of the checkpoint in that folder. Checks that its files exist and have the right sizes.
Result<CheckpointManifest> read_checkpoint(const fs::path& folder, CheckpointId id) {
  const auto path = folder / kManifest;
  if (const uint64_t bytes = TRY(size_of(path)); bytes > kMaxCheckpointManifestBytes) {
    return Error{fmt::format("{}: not a checkpoint manifest: has {} bytes, needs at most {}", path.string(), bytes,
                             kMaxCheckpointManifestBytes)};
  }
  const auto text = TRY(read_file(path));
  auto manifest = TRY(parse_checkpoint_manifest(text, path.string()));
  if (manifest.id != id) {
    return Error{fmt::format("{}: belongs to {}, not {}", path.string(), name_of(manifest.id), name_of(id))};
  }
  for (const auto& file : manifest.files) TRY(check_size(folder / unit_file_name(file.unit), file.bytes));
  return manifest;
}

// Also checks the hashes of the files, reading every byte.
Status check_hashes(const fs::path& folder, const CheckpointManifest& manifest) {
  for (const auto& file : manifest.files) {
    const auto path = folder / unit_file_name(file.unit);
    TRY(check_size(path, file.bytes));
    const auto hash = TRY(sha256_of_file(path));
    if (hash == file.sha256) continue;
    return Error{fmt::format("{}: damaged: its sha256 is {}, needs {}", path.string(), hash, file.sha256)};
  }
  return {};
}

Result<FoundCheckpoint> whole_checkpoint(const fs::path& checkpoints, CheckpointId id) {
  const auto folder = checkpoints / name_of(id);
  FoundCheckpoint found{TRY(read_checkpoint(folder, id)), {}};
  TRY(check_hashes(folder, found.manifest));
  for (const auto& file : found.manifest.files) found.files.push_back(folder / unit_file_name(file.unit));
  return found;
}

}  // namespace

std::optional<CheckpointId> checkpoint_id(std::string_view folder_name) {
  constexpr std::string_view kPrefix = "step-";
  if (!folder_name.starts_with(kPrefix)) return std::nullopt;
  const char* const end = folder_name.data() + folder_name.size();
  CheckpointId id;
  const auto step = std::from_chars(folder_name.data() + kPrefix.size(), end, id.step);
  if (step.ec != std::errc() || end - step.ptr < 3 || step.ptr[0] != '-' || step.ptr[1] != 'g') return std::nullopt;
  const auto generation = std::from_chars(step.ptr + 2, end, id.generation);
  if (generation.ec != std::errc() || generation.ptr != end || name_of(id) != folder_name) return std::nullopt;
  return id;
}

Result<std::vector<CheckpointId>> checkpoints_of(const fs::path& run_folder) {
  return checkpoints_in(run_folder / "checkpoints");
}

// ---- receiving ----

Status IncomingFile::append(std::string_view bytes) {
  if (!file_) return give_up("got bytes after an error or after its end");
  if (bytes.size() > announced_.bytes - received_bytes_) {
    return give_up(fmt::format("got more than the announced {} bytes", announced_.bytes));
  }
  if (auto status = file_->append(bytes); !status) {
    file_.reset();
    return status;
  }
  hash_.update(bytes);
  received_bytes_ += bytes.size();
  return {};
}

Result<fs::path> IncomingFile::check() {
  if (!file_) return give_up("was already finished");
  if (received_bytes_ != announced_.bytes) {
    return give_up(fmt::format("got {} bytes, {} were announced", received_bytes_, announced_.bytes));
  }
  if (const auto hash = hash_.hex(); hash != announced_.sha256) {
    return give_up(fmt::format("damaged in transfer: its sha256 is {}, announced was {}", hash, announced_.sha256));
  }
  checked_ = true;
  if (const auto status = file_->flush(); !status) {
    file_.reset();
    return status.error();
  }
  return file_->temporary();
}

Status IncomingFile::finish() {
  if (!checked_) TRY(check());
  if (!file_) return give_up("was already finished");
  Status status = store_->take_in(*this, *file_);
  file_.reset();
  return status;
}

Error IncomingFile::give_up(const std::string& message) {
  file_.reset();
  return Error{fmt::format("checkpoint {}: {}: {}", name_of(id_), announced_.unit, message)};
}

fs::path CheckpointStore::folder_of(CheckpointId id) const { return folder_ / name_of(id); }
fs::path CheckpointStore::hidden(CheckpointId id, const char* state) const {
  return folder_ / fmt::format(".{}.{}", name_of(id), state);
}
fs::path CheckpointStore::path_of(CheckpointId id, std::string_view unit) const {
  return folder_of(id) / unit_file_name(unit);
}

Result<IncomingFile> CheckpointStore::receive_file(CheckpointId id, const CheckpointFile& file) {
  const auto refuse = [&](std::string_view message) {
    return Error{fmt::format("checkpoint {}: {}: {}", name_of(id), quoted_for_error(file.unit), message)};
  };
  if (id.step < 0 || id.step > kMaxCheckpointStep) {
    return refuse(fmt::format("needs a step from 0 to {}", kMaxCheckpointStep));
  }
  if (!is_unit_name(file.unit)) return refuse("needs a plain name of a-z, 0-9 and '-'");
  if (!is_sha256_hex(file.sha256)) {
    return refuse(fmt::format("its sha256 is {}, needs 64 lower-case hex digits", quoted_for_error(file.sha256)));
  }
  const std::lock_guard lock(mutex_);
  const auto partial = hidden(id, "partial");
  // Anything there before this process's first file was left by another process.
  if (!received_.contains(id)) TRY(remove_leftover(partial));
  TRY(make_directories(partial));
  auto target = TRY(AtomicFile::create(partial / unit_file_name(file.unit)));
  received_.try_emplace(id);
  return IncomingFile(this, id, file, std::move(target));
}

Result<CheckpointFile> CheckpointStore::receive_copy(CheckpointId id, const std::string& unit, const fs::path& path) {
  const auto mapped = TRY(MappedFile::open(path));
  auto left = mapped.bytes();
  CheckpointFile file{unit, left.size(), sha256_hex(left)};
  auto incoming = TRY(receive_file(id, file));
  while (!left.empty()) {
    TRY(incoming.append(left.substr(0, kPieceBytes)));
    left.remove_prefix(std::min(left.size(), kPieceBytes));
  }
  TRY(incoming.finish());
  return file;
}

Status CheckpointStore::take_in(const IncomingFile& incoming, AtomicFile& file) {
  const std::lock_guard lock(mutex_);
  const auto found = received_.find(incoming.id_);
  if (found == received_.end()) {
    return Error{fmt::format("checkpoint {}: {}: too late: the checkpoint was committed or abandoned in the meantime",
                             name_of(incoming.id_), incoming.announced_.unit)};
  }
  // If commit() fails halfway, it is unknown which of the two files has the name: neither may be committed.
  found->second.erase(incoming.announced_.unit);
  TRY(file.commit());
  found->second.emplace(incoming.announced_.unit, incoming.announced_);
  return {};
}

// ---- committing and removing ----

Status CheckpointStore::check_received(const CheckpointManifest& manifest) const {
  const auto refuse = [&manifest](const CheckpointFile& file, std::string_view message) {
    return Error{fmt::format("cannot commit the checkpoint {}: {} {}", name_of(manifest.id), file.unit, message)};
  };
  const auto received = received_.find(manifest.id);
  for (const auto& file : manifest.files) {
    if (received == received_.end() || !received->second.contains(file.unit)) {
      return refuse(file, "has not been received");
    }
    const auto& got = received->second.at(file.unit);
    if (got != file) {
      return refuse(file, fmt::format("was received with {} bytes and sha256 {}, the manifest has {} and {}", got.bytes,
                                      got.sha256, file.bytes, file.sha256));
    }
    TRY(check_size(hidden(manifest.id, "partial") / unit_file_name(file.unit), file.bytes));
  }
  return {};
}

Status CheckpointStore::commit(const CheckpointManifest& manifest) {
  if (manifest.run != run_) {
    return Error{fmt::format("cannot commit the checkpoint {}: it belongs to run {}, this store to run {}",
                             name_of(manifest.id), quoted_for_error(manifest.run), quoted_for_error(run_))};
  }
  if (const auto fault = manifest_fault(manifest); !fault.empty()) {
    return Error{fmt::format("cannot commit the checkpoint {}: {}", name_of(manifest.id), fault)};
  }
  const std::lock_guard lock(mutex_);
  const auto partial = hidden(manifest.id, "partial");
  if (look_at(manifest.id)) {
    received_.erase(manifest.id);
    TRY(sync_directory(folder_));  // an earlier commit() may have failed here
    (void)remove_tree(partial);
    return {};
  }
  TRY(check_received(manifest));
  // Removes files of an earlier attempt, and transfers that nobody waits for any more.
  for (const auto& entry : TRY(entries_of(partial))) {
    const auto belongs = [&](const CheckpointFile& file) { return unit_file_name(file.unit) == entry.filename(); };
    if (std::none_of(manifest.files.begin(), manifest.files.end(), belongs)) TRY(remove_tree(entry));
  }
  TRY(write_file_atomically(partial / kManifest, manifest_text(manifest)));
  if (is_of_another_run(manifest.id)) {
    return Error{
        fmt::format("{}: belongs to another run, not {}", folder_of(manifest.id).string(), quoted_for_error(run_))};
  }
  if (is_there(folder_of(manifest.id))) TRY(remove(manifest.id));  // damaged
  TRY(rename_path(partial, folder_of(manifest.id)));
  received_.erase(manifest.id);
  return sync_directory(folder_);
}

// A hidden folder may have been a checkpoint until a rename that was never synced.
Status CheckpointStore::remove_leftover(const fs::path& path) {
  if (!is_there(path)) return {};
  TRY(sync_directory(folder_));
  return remove_tree(path);
}

// Renames it to a hidden name and syncs that first: a partly removed checkpoint must not look like one.
Status CheckpointStore::remove(CheckpointId id) {
  const auto removed = hidden(id, "removed");
  TRY(remove_leftover(removed));
  TRY(rename_path(folder_of(id), removed));
  return remove_leftover(removed);
}

Status CheckpointStore::keep(int64_t last_n, int64_t every_m) {
  TP_CHECK(last_n >= 1 && every_m >= 0, "keep({}, {})", last_n, every_m);
  std::vector<CheckpointId> old;
  int64_t kept = 0;
  for (const auto id : TRY(checkpoints_in(folder_))) {
    if (!look_at(id) || kept++ < last_n) continue;
    if (every_m == 0 || id.step % every_m != 0) old.push_back(id);
  }
  std::reverse(old.begin(), old.end());
  for (const auto id : old) TRY(remove(id));
  return {};
}

Status CheckpointStore::clean_partials() {
  const std::lock_guard lock(mutex_);
  received_.clear();
  for (const auto& entry : TRY(entries_of(folder_))) {
    const auto name = entry.filename().string();
    if (!name.starts_with(".step-") || !(name.ends_with(".partial") || name.ends_with(".removed"))) continue;
    TRY(remove_leftover(entry));
  }
  return {};
}

// ---- finding ----

Result<CheckpointManifest> CheckpointStore::look_at(CheckpointId id) const {
  auto manifest = TRY(read_checkpoint(folder_of(id), id));
  if (manifest.run == run_) return manifest;
  return Error{fmt::format("{}: belongs to another run: {}, not {}", folder_of(id).string(),
                           quoted_for_error(manifest.run), quoted_for_error(run_))};
}

bool CheckpointStore::is_of_another_run(CheckpointId id) const {
  const auto found = read_checkpoint(folder_of(id), id);
  return found && found.value().run != run_;
}

bool CheckpointStore::holds(CheckpointId id, const std::string& unit, const std::string& sha256) const {
  const auto found = look_at(id);
  return found && std::any_of(found.value().files.begin(), found.value().files.end(),
                              [&](const CheckpointFile& file) { return file.unit == unit && file.sha256 == sha256; });
}

Result<std::optional<CheckpointManifest>> CheckpointStore::latest(int64_t not_after) {
  refusals_.clear();
  for (const auto id : TRY(checkpoints_in(folder_))) {
    if (id.step > not_after) continue;
    auto found = look_at(id);
    const Status whole = found ? check_hashes(folder_of(id), found.value()) : found.error();
    if (whole) return std::optional(std::move(found).value());
    refusals_.push_back(whole.error().message);
  }
  return std::optional<CheckpointManifest>();
}

Result<FoundCheckpoint> newest_checkpoint(const fs::path& run_folder) {
  const auto folder = run_folder / "checkpoints";
  // A folder is never replaced, but it may be removed while we read it, which happens only after a newer one was
  // written: then look again.
  for (;;) {
    bool vanished = false;
    std::string reason = fmt::format("{}: has no checkpoint yet", run_folder.string());
    const auto ids = TRY(checkpoints_in(folder));
    for (size_t i = 0; i < ids.size() && !vanished; ++i) {
      auto found = whole_checkpoint(folder, ids[i]);
      if (found) return found;
      if (i == 0) reason = fmt::format("{}: has no intact checkpoint: {}", run_folder.string(), found.error().message);
      vanished = !is_there(folder / name_of(ids[i]));
    }
    if (!vanished) return Error{reason};
  }
}

Result<FoundCheckpoint> checkpoint_of_step(const fs::path& run_folder, int64_t step,
                                           std::optional<uint64_t> generation) {
  const auto folder = run_folder / "checkpoints";
  std::set<int64_t> steps;
  for (const auto id : TRY(checkpoints_in(folder))) {
    if (id.step == step && (!generation || id.generation == *generation)) return whole_checkpoint(folder, id);
    steps.insert(id.step);
  }
  return Error{fmt::format("{}: has no checkpoint of step {}; it has {}", run_folder.string(), step,
                           steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", ")))};
}

fs::path table_path(const fs::path& folder, const std::string& hash) {
  return folder / "tables" / (hash + ".safetensors");
}

Status write_model_file(const std::vector<fs::path>& unit_files, const fs::path& out) {
  constexpr std::string_view kPrefix = "param.";
  std::vector<SafetensorsFile> files;
  std::vector<SafetensorsTensor> tensors;
  std::vector<size_t> sources;  // the file of each tensor
  std::optional<SafetensorsTensor> basis;
  size_t basis_source = 0;
  for (const auto& path : unit_files) {
    files.push_back(TRY(SafetensorsFile::open(path)));
    for (auto tensor : files.back().tensors()) {
      if (tensor.name == "basis.u") {
        basis = tensor;
        basis_source = files.size() - 1;
      }
      if (!tensor.name.starts_with(kPrefix)) continue;
      tensor.name.erase(0, kPrefix.size());
      tensors.push_back(std::move(tensor));
      sources.push_back(files.size() - 1);
    }
  }
  if (basis) {
    basis->name = "basis";
    tensors.push_back(std::move(*basis));
    sources.push_back(basis_source);
  }
  auto writer = TRY(SafetensorsWriter::create(out, tensors, {{"format", "thinpipe"}}));
  for (size_t i = 0; i < tensors.size(); ++i) {
    TRY(writer.append(tensors[i].bytes));
    files[sources[i]].forget(tensors[i]);
  }
  return writer.commit();
}

}  // namespace thinpipe
