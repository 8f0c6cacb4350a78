// A folder that appears under its name only when it is complete, as AtomicFile does for a file, and the lock that keeps
// two processes from making the same folder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {

// Held by one thread of one process at a time. The system releases it when the process ends in any way. The last holder
// removes the file.
class FileLock {
 public:
  // Waits until the lock is free; calls `on_wait` once before it waits.
  static Result<FileLock> acquire(const std::filesystem::path& path, const std::function<void()>& on_wait);
  // Returns nothing if the lock is taken, or if the file cannot be created.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;

 private:
  FileLock(std::filesystem::path path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  Fd file_;
};

// The lock for making folder `target`: ".NAME.lock" beside it.
std::filesystem::path lock_of(const std::filesystem::path& target);

// A hidden folder beside the target: ".NAME.unfinished".
class WorkFolder {
 public:
  // Creates it empty; removes the remains of a killed process. The caller holds lock_of(target).
  static Result<WorkFolder> create(const std::filesystem::path& target);
  // Removes the folder with its contents, unless it was published.
  ~WorkFolder();
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Renames it to the target; replaces an existing folder.
  Status publish();

 private:
  WorkFolder(std::filesystem::path target, std::filesystem::path path)
      : target_(std::move(target)), path_(std::move(path)) {}

  std::filesystem::path target_;
  std::filesystem::path path_;  // empty once published
};

// Removes the hidden folders and locks in `parent` that killed processes have left, which are those with a free lock.
// Errors are ignored: leftovers do no harm.
void remove_abandoned_work(const std::filesystem::path& parent);

}  // namespace thinpipe
