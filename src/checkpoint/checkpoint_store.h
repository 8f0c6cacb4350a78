// The checkpoints of one run in one folder. Files arrive one by one, in any order, into a hidden folder; commit() adds
// the manifest and gives the folder its name, and only then does the checkpoint exist. Whatever interrupts that - a
// full disk, a killed process, a power cut - the checkpoints before it stay as they were. docs/checkpoints.md has the
// layout.
#pragma once

#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint_manifest.h"

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
  IncomingFile(CheckpointStore* store, int64_t step, CheckpointFile announced, AtomicFile file)
      : store_(store), step_(step), announced_(std::move(announced)), file_(std::move(file)) {}
  Error give_up(const std::string& message);

  CheckpointStore* store_;
  int64_t step_;
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
  CheckpointStore(std::filesystem::path folder, std::string run);
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // Replaces an earlier one of that step and name when it is finished. Files that an earlier process received for a
  // step it never committed are not taken over.
  Result<IncomingFile> receive_file(int64_t step, const std::string& name, uint64_t bytes, const std::string& sha256);
  // The same with a file that lies on this machine, under its own name; what it was received as.
  Result<CheckpointFile> receive_copy(int64_t step, const std::filesystem::path& file);
  // Whether it has been received for the next commit of that step, or is part of the checkpoint of that step.
  bool holds(int64_t step, const std::string& name, const std::string& sha256) const;

  // All its files must have been received. A checkpoint of that step is replaced in one move if it is damaged, of an
  // older generation, or of the same with other cuts; otherwise it stays, and that is no error. After an error,
  // commit() may be tried again.
  Status commit(const CheckpointManifest& manifest);

  // The newest checkpoint up to that step that is of this run and whose files have their sizes. What was newer and
  // passed over stands in refusals(), a line each, until the next call.
  Result<std::optional<CheckpointManifest>> latest(int64_t not_after = std::numeric_limits<int64_t>::max());
  const std::vector<std::string>& refusals() const { return refusals_; }

  // Reads every byte of it: the manifest on the disk is this one and each file has its hash.
  Status verify(const CheckpointManifest& manifest) const;
  std::filesystem::path path_of(int64_t step, std::string_view name) const;

  // Removes all but the newest `last_n` (at least 1) and those whose step every_m divides (0: none). Damaged
  // checkpoints and those of other runs are neither counted nor removed.
  Status keep(int64_t last_n, int64_t every_m);
  // Removes what is newer, newest first, so that what is left at any moment is a history without a gap. Those of other
  // runs stay.
  Status drop_after(int64_t step);
  // Removes what interrupted writing and removing left behind, and what has been received and not committed.
  Status clean_partials();

 private:
  friend class IncomingFile;
  struct Received;
  // What lies in the folder of a step.
  struct Found {
    enum class State { kWhole, kDamaged, kOfAnotherRun } state;
    CheckpointManifest manifest;  // if it is whole
    std::string reason;           // if it is not
  };

  Found look_at(int64_t step) const;
  Result<std::vector<int64_t>> steps() const;  // newest first
  std::filesystem::path folder_of(int64_t step) const;
  std::filesystem::path partial_of(int64_t step) const;
  std::filesystem::path removed_of(int64_t step) const;
  Status check_received(const CheckpointManifest& manifest) const;
  Status move_into_place(int64_t step);
  Status remove(int64_t step);
  Status remove_leftover(const std::filesystem::path& path);
  Status take_in(const IncomingFile& incoming, AtomicFile& file);

  std::filesystem::path folder_;
  std::string run_;
  std::unique_ptr<Received> received_;
  std::vector<std::string> refusals_;
};

}  // namespace thinpipe
