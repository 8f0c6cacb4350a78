// The checkpoints of one run in one folder, a file per unit of the model. Files arrive one by one, in any order, into a
// hidden folder; commit() adds the manifest and gives the folder its name, and only then does the checkpoint exist.
// Whatever interrupts that - a full disk, a killed process, a power cut - the checkpoints before it stay as they were.
// docs/checkpoints.md has the layout.
#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "store/manifest.h"

namespace thinpipe {

class CheckpointStore;

// A file on its way in. Until finish() has succeeded nothing of it can be committed; destroyed before, or after an
// error, it leaves nothing. One thread at a time. The store must outlive it.
class IncomingFile {
 public:
  Status append(std::string_view bytes);
  // The size and the hash must be those that were announced; then the file is on the disk. Nothing may be called after.
  Status finish();

 private:
  friend class CheckpointStore;
  IncomingFile(CheckpointStore* store, CheckpointId id, CheckpointFile announced, AtomicFile file)
      : store_(store), id_(id), announced_(std::move(announced)), file_(std::move(file)) {}
  Error give_up(const std::string& message);

  CheckpointStore* store_;
  CheckpointId id_;
  CheckpointFile announced_;
  std::optional<AtomicFile> file_;  // empty after finish() and after an error
  Sha256 hash_;
  uint64_t received_bytes_ = 0;
};

// receive_file(), holds() and what is done to different IncomingFiles may come from several threads; all else from one.
// The folder belongs to one store at a time.
class CheckpointStore {
 public:
  // The folder is made when the first file comes. `run` is the CheckpointManifest's.
  CheckpointStore(std::filesystem::path folder, std::string run) : folder_(std::move(folder)), run_(std::move(run)) {}
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // Replaces an earlier one of that checkpoint and unit when it is finished. Files that an earlier process received for
  // a checkpoint it never committed are not taken over.
  Result<IncomingFile> receive_file(CheckpointId id, const CheckpointFile& file);
  // The same with a file that lies on this machine; what it was received as.
  Result<CheckpointFile> receive_copy(CheckpointId id, const std::string& unit, const std::filesystem::path& file);
  // Whether it is part of that checkpoint, as it is on the disk.
  bool holds(CheckpointId id, const std::string& unit, const std::string& sha256) const;

  // All its files must have been received. A whole checkpoint of that id stays, and that is no error: it is never
  // replaced. After an error, commit() may be tried again.
  Status commit(const CheckpointManifest& manifest);

  // The newest checkpoint up to that step that is of this run and whole: every byte is read and hashed. What was newer
  // and passed over stands in refusals(), a line each, until the next call.
  Result<std::optional<CheckpointManifest>> latest(int64_t not_after = std::numeric_limits<int64_t>::max());
  const std::vector<std::string>& refusals() const { return refusals_; }

  std::filesystem::path path_of(CheckpointId id, std::string_view unit) const;

  // Removes all but the newest `last_n` (at least 1) and those whose step every_m divides (0: none). Damaged
  // checkpoints and those of other runs are neither counted nor removed.
  Status keep(int64_t last_n, int64_t every_m);
  // Removes what interrupted writing and removing left behind, and what has been received and not committed.
  Status clean_partials();

 private:
  friend class IncomingFile;

  std::filesystem::path folder_of(CheckpointId id) const;
  std::filesystem::path hidden(CheckpointId id, const char* state) const;
  // The manifest, if it is of this run and its files have their sizes.
  Result<CheckpointManifest> look_at(CheckpointId id) const;
  bool is_of_another_run(CheckpointId id) const;
  Status check_received(const CheckpointManifest& manifest) const;
  Status remove(CheckpointId id);
  Status remove_leftover(const std::filesystem::path& path);
  Status take_in(const IncomingFile& incoming, AtomicFile& file);

  std::filesystem::path folder_;
  std::string run_;
  mutable std::mutex mutex_;
  // What this process has received for checkpoints it has not committed, by unit. One is here from its first
  // receive_file() on.
  std::map<CheckpointId, std::map<std::string, CheckpointFile>> received_;
  std::vector<std::string> refusals_;
};

// ---- for those who only read: no lock, no change, also beside a coordinator that is training on ----

struct FoundCheckpoint {
  CheckpointManifest manifest;
  std::vector<std::filesystem::path> files;  // in the manifest's order: safetensors (docs/checkpoints.md)
};

// The newest whole checkpoint of a run: the manifest is one, and every byte of every file is read and hashed. A
// coordinator at work may remove these files later: open them soon, ask again if one is gone, and keep them open; what
// is open stays readable. An error says why there is none.
Result<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& run_folder);
// The newest one of that step, or the one of that generation, under the same conditions.
Result<FoundCheckpoint> checkpoint_of_step(const std::filesystem::path& run_folder, int64_t step,
                                           std::optional<uint64_t> generation = {});
// Those that have a folder, newest first, whole or not.
Result<std::vector<CheckpointId>> checkpoints_of(const std::filesystem::path& run_folder);
// Of a checkpoint's folder, "step-00000020-g3"; nothing for any other name.
std::optional<CheckpointId> checkpoint_id(std::string_view folder_name);

// Where a run, or a worker, keeps the frozen token table of an imported model (pipeline/table_file.h).
std::filesystem::path table_path(const std::filesystem::path& folder, const std::string& hash);

// One model file out of the units' files: their parameters, without the prefix, and the basis as "basis". Bytes are
// copied as they lie.
Status write_model_file(const std::vector<std::filesystem::path>& unit_files, const std::filesystem::path& out);

}  // namespace thinpipe
