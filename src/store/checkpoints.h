// The checkpoints of one run in one folder, with a file per unit of the model. Files arrive one by one, in any order,
// in a hidden folder; commit() adds the manifest and gives the folder its name. Only then the checkpoint exists. If
// anything interrupts that (a full disk, a killed process, a power cut), earlier checkpoints are unchanged.
// docs/checkpoints.md describes the layout.
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

// A file that is being received. It can be committed only after finish() has succeeded; otherwise the destructor
// removes it. One thread at a time. The store must outlive it.
class IncomingFile {
 public:
  Status append(std::string_view bytes);
  // After the last byte: checks the announced size and hash and flushes the file to the disk. Returns where it can be
  // read until finish().
  Result<std::filesystem::path> check();
  // Makes it part of the checkpoint, after check() if that was not called. Must be the last call.
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
  bool checked_ = false;
};

// Several threads may call receive_file() and holds() and use different IncomingFiles; everything else is for one
// thread. The folder belongs to one store at a time.
class CheckpointStore {
 public:
  // The folder is created with the first file. `run` is that of CheckpointManifest.
  CheckpointStore(std::filesystem::path folder, std::string run) : folder_(std::move(folder)), run_(std::move(run)) {}
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // Replaces an earlier file of that checkpoint and unit when finished. Files that an earlier process received but
  // never committed are not used.
  Result<IncomingFile> receive_file(CheckpointId id, const CheckpointFile& file);
  // The same with a file on this machine; returns its description.
  Result<CheckpointFile> receive_copy(CheckpointId id, const std::string& unit, const std::filesystem::path& file);
  // Whether the file is part of that checkpoint on the disk.
  bool holds(CheckpointId id, const std::string& unit, const std::string& sha256) const;

  // All its files must have been received. An intact checkpoint with that id is never replaced; committing it again is
  // not an error. After an error, commit() may be called again.
  Status commit(const CheckpointManifest& manifest);

  // The newest intact checkpoint of this run up to that step; reads and hashes every byte. refusals() has one line for
  // each newer one that was skipped, until the next call.
  Result<std::optional<CheckpointManifest>> latest(int64_t not_after = std::numeric_limits<int64_t>::max());
  const std::vector<std::string>& refusals() const { return refusals_; }

  std::filesystem::path path_of(CheckpointId id, std::string_view unit) const;

  // Removes all but the newest `last_n` (at least 1) and those whose step is divisible by every_m (0: none). Damaged
  // checkpoints and those of other runs are neither counted nor removed.
  Status keep(int64_t last_n, int64_t every_m);
  // Removes the remains of interrupted writes and removals, and files that were received but not committed.
  Status clean_partials();

 private:
  friend class IncomingFile;

  std::filesystem::path folder_of(CheckpointId id) const;
  std::filesystem::path hidden(CheckpointId id, const char* state) const;
  // The manifest, if it belongs to this run and its files have the right sizes.
  Result<CheckpointManifest> look_at(CheckpointId id) const;
  bool is_of_another_run(CheckpointId id) const;
  Status check_received(const CheckpointManifest& manifest) const;
  Status remove(CheckpointId id);
  Status remove_leftover(const std::filesystem::path& path);
  Status take_in(const IncomingFile& incoming, AtomicFile& file);

  std::filesystem::path folder_;
  std::string run_;
  mutable std::mutex mutex_;
  // Files that this process has received for checkpoints it has not committed, by unit. An entry exists from the first
  // receive_file() on.
  std::map<CheckpointId, std::map<std::string, CheckpointFile>> received_;
  std::vector<std::string> refusals_;
};

// ---- for readers: no lock, no changes, safe beside a coordinator that is training ----

struct FoundCheckpoint {
  CheckpointManifest manifest;
  std::vector<std::filesystem::path> files;  // safetensors, in the manifest's order (docs/checkpoints.md)
};

// The newest intact checkpoint of a run: its manifest is valid, and every byte of every file was read and hashed. A
// running coordinator may remove these files later, so open them soon and keep them open; open files stay readable.
// Call again if one is gone. An error says why there is no checkpoint.
Result<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& run_folder);
// The newest checkpoint of that step, or the one of that generation, with the same checks.
Result<FoundCheckpoint> checkpoint_of_step(const std::filesystem::path& run_folder, int64_t step,
                                           std::optional<uint64_t> generation = {});
// All that have a folder, newest first, intact or not.
Result<std::vector<CheckpointId>> checkpoints_of(const std::filesystem::path& run_folder);
// The id of a checkpoint's folder, "step-00000020-g3"; nothing for any other name.
std::optional<CheckpointId> checkpoint_id(std::string_view folder_name);

// Where a run, or a worker, keeps the frozen token table of an imported model (pipeline/table_file.h).
std::filesystem::path table_path(const std::filesystem::path& folder, const std::string& hash);

// Writes one model file from the files of the units: their parameters, without the prefix, and the basis as "basis".
// Copies the bytes unchanged.
Status write_model_file(const std::vector<std::filesystem::path>& unit_files, const std::filesystem::path& out);

}  // namespace thinpipe
