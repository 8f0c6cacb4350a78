// A folder that appears under its name when it is whole, as AtomicFile does for a file, and the lock that keeps two
// processes from making the same one twice.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"

namespace thinpipe {

// Held by one process (and one thread of it) at a time; the system releases it when the process ends, however it ends.
// The file is gone again after the last holder.
class FileLock {
 public:
  // Waits until the lock is free, after calling `on_wait` once if it is not at first.
  static Result<FileLock> acquire(const std::filesystem::path& path, const std::function<void()>& on_wait);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;

 private:
  FileLock(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_;
};

// A hidden sibling of the folder to be; removed with all it holds unless publish() has given it its name.
class WorkFolder {
 public:
  // The caller holds the lock of `target`: what an earlier process was killed over is removed first.
  static Result<WorkFolder> create(const std::filesystem::path& target);
  ~WorkFolder();
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Renames it to the target; a folder already there is replaced.
  Status publish();

 private:
  WorkFolder(std::filesystem::path target, std::filesystem::path path)
      : target_(std::move(target)), path_(std::move(path)) {}

  std::filesystem::path target_;
  std::filesystem::path path_;  // empty once published
};

}  // namespace thinpipe
