// A folder that appears under its name when it is whole, as AtomicFile does for a file, and the lock that keeps two
// processes from making the same one twice.
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// Held by one process (and one thread of it) at a time; the system releases it when the process ends, however it ends.
// The file is gone again after the last holder.
class FileLock {
 public:
  // Waits until the lock is free, after calling `on_wait` once if it is not at first.
  static Result<FileLock> acquire(const std::filesystem::path& path, const std::function<void()>& on_wait);
  // Nothing if somebody holds it, or if it cannot be made.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;

 private:
  FileLock(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_;
};

// A hidden sibling of the folder to be, ".NAME.unfinished". One that a killed process has left is taken up again with
// all it holds.
class WorkFolder {
 public:
  // The caller holds the lock of `target`, ".NAME.lock" beside it.
  static Result<WorkFolder> open(const std::filesystem::path& target);
  // Removed with all it holds, unless publish() has given it its name or keep() was called.
  ~WorkFolder();
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // From now on what it holds is worth going on with, even if this process fails.
  void keep() { kept_ = true; }
  // No longer: it goes when this object goes.
  void drop() { kept_ = false; }
  // Removes all it holds but files of these names.
  Status clear_except(std::initializer_list<std::string_view> names) const;
  // Renames it to the target; a folder already there is replaced.
  Status publish();

 private:
  WorkFolder(std::filesystem::path target, std::filesystem::path path)
      : target_(std::move(target)), path_(std::move(path)) {}

  std::filesystem::path target_;
  std::filesystem::path path_;  // empty once published
  bool kept_ = false;
};

// The names of both, beside the target.
std::filesystem::path lock_of(const std::filesystem::path& target);
std::filesystem::path unfinished_of(const std::filesystem::path& target);

// What is unfinished in `parent`, by the name it would get. Somebody may be at work there.
std::vector<std::string> unfinished_in(const std::filesystem::path& parent);
// Removes those that nobody is at work on and that were last written to before `before`. They are no more than a start,
// so that one that cannot be removed is left.
void remove_unfinished(const std::filesystem::path& parent, std::filesystem::file_time_type before);

}  // namespace thinpipe
