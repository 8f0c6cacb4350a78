// A disk that fails at its nth operation, or a process that is killed there, so that a test can interrupt a write at
// every operation. Operations are counted from 1; those before the nth work normally.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "support/scratch.h"

namespace thinpipe::test {

enum class Fault {
  kNone,
  kIoError,     // operation n fails with EIO and does nothing
  kNoSpace,     // the same with ENOSPC
  kShortWrite,  // the first write from operation n on takes half of its bytes, the next operation fails with ENOSPC
  kCrash,       // operation n and all after it fail and do nothing: the process was killed
  // The machine lost its power: like kCrash, and everything that was not synced is lost. Files are cut to half their
  // size; created, moved and removed names are as they were at the last sync of their folder.
  kPowerLoss,
  // The same on a disk that removes early: removed files and folders stay removed although nobody synced that.
  kPowerLossAfterRemovals
};

constexpr Fault kAllFaults[] = {Fault::kIoError, Fault::kNoSpace,   Fault::kShortWrite,
                                Fault::kCrash,   Fault::kPowerLoss, Fault::kPowerLossAfterRemovals};

inline const char* name_of(Fault fault) {
  constexpr const char* kNames[] = {
      "none", "EIO", "ENOSPC", "short write", "crash", "power loss", "power loss after removals"};
  return kNames[static_cast<size_t>(fault)];
}

inline bool is_power_loss(Fault fault) { return fault == Fault::kPowerLoss || fault == Fault::kPowerLossAfterRemovals; }
inline bool kills(Fault fault) { return fault == Fault::kCrash || is_power_loss(fault); }

// One thread at a time.
class FaultyFileSystem : public FileSystem {
 public:
  // Fault::kNone only counts.
  explicit FaultyFileSystem(Fault fault = Fault::kNone, size_t at = 0) : fault_(fault), at_(at) {
    if (is_power_loss(fault)) saved_.emplace();
  }
  ~FaultyFileSystem() override {
    for (const auto& [descriptor, file] : files_) ::close(file.copy);
  }

  // The names of the operations so far, refused ones included: "write", "rename"...
  const std::vector<std::string>& operations() const { return operations_; }
  bool fault_happened() const { return happened_; }

  // The next operation of that name fails with EIO, in addition to the fault.
  void fail_next(std::string operation) { failing_ = std::move(operation); }

  // Every operation fails with that errno from now on, in addition to the fault; 0: no longer.
  void fail_all(int reason) { failing_with_ = reason; }
  // The next operation fails with that errno; with half_written, a write takes half of its bytes before.
  void fail_once(int reason, bool half_written = false) {
    once_with_ = reason;
    half_first_ = half_written;
  }
  // How many operations have failed because of these two.
  size_t failures() const { return failures_; }

  // Crashes or loses power now, if that did not happen because there was no operation n.
  void crash() {
    if (std::exchange(crashed_, true)) return;
    if (is_power_loss(fault_)) lose_unsynced();
  }

  int create_unique(std::string& pattern, mode_t mode) override {
    if (refuse("create")) return -1;
    const int descriptor = FileSystem::create_unique(pattern, mode);
    // The duplicate reaches the file after its close and under any name.
    if (descriptor >= 0 && saved_) files_.emplace_back(descriptor, OpenFile{::dup(descriptor)});
    if (descriptor >= 0) note({Change::kMade, pattern, {}, {}});
    return descriptor;
  }

  ssize_t write(int descriptor, const char* bytes, size_t count) override {
    bool shortened = false;
    if (refuse("write", &shortened)) return -1;
    set_unsynced(descriptor, true);
    return FileSystem::write(descriptor, bytes, shortened ? count / 2 : count);
  }

  ssize_t pwrite(int descriptor, const char* bytes, size_t count, int64_t offset) override {
    bool shortened = false;
    if (refuse("pwrite", &shortened)) return -1;
    set_unsynced(descriptor, true);
    return FileSystem::pwrite(descriptor, bytes, shortened ? count / 2 : count, offset);
  }

  int fsync(int descriptor) override {
    if (refuse("fsync")) return -1;
    set_unsynced(descriptor, false);
    return 0;  // only the bookkeeping matters; tests need no real sync
  }

  // The descriptor is closed even if this fails, as on a real system.
  int close(int descriptor) override {
    const bool refused = refuse("close");
    const int reason = errno;
    FileSystem::close(descriptor);
    for (auto& [number, file] : files_) {
      if (number == descriptor) number = -1;  // the number may be reused
    }
    errno = reason;
    return refused ? -1 : 0;
  }

  int rename(const std::string& from, const std::string& to) override {
    if (refuse("rename")) return -1;
    Change change{Change::kMoved, from, to, saved(to)};
    const int result = FileSystem::rename(from, to);
    if (result == 0) note(std::move(change));
    return result;
  }

  int unlink(const std::string& path) override {
    if (refuse("unlink")) return -1;
    Change change{Change::kUnlinked, path, {}, saved(path)};
    const int result = FileSystem::unlink(path);
    if (result == 0) note(std::move(change));
    return result;
  }

  int mkdir(const std::string& path) override {
    if (refuse("mkdir")) return -1;
    const int result = FileSystem::mkdir(path);
    if (result == 0) note({Change::kMade, path, {}, {}});
    return result;
  }

  int rmdir(const std::string& path) override {
    if (refuse("rmdir")) return -1;
    const int result = FileSystem::rmdir(path);
    if (result == 0) note({Change::kRemovedFolder, path, {}, {}});
    return result;
  }

  int sync_directory(const std::string& path) override {
    if (refuse("sync_directory")) return -1;
    forget_changes_in(path);
    return 0;
  }

 private:
  struct OpenFile {
    int copy;
    bool unsynced = false;
  };

  // A change of the names in a folder that has not been synced.
  struct Change {
    enum Kind { kMade, kMoved, kUnlinked, kRemovedFolder } kind;
    std::string path;
    std::string to;
    std::string saved;  // another link to the file that was replaced or removed
  };

  bool refuse(const char* operation, bool* shortened = nullptr) {
    operations_.emplace_back(operation);
    if (crashed_) return fail(EIO);
    if (failing_ == operation) {
      failing_.clear();
      return fail(EIO);
    }
    if (once_with_ != 0 && half_first_ && shortened != nullptr) {
      *shortened = true;
      half_first_ = false;
      return false;
    }
    const int reason = once_with_ != 0 ? std::exchange(once_with_, 0) : failing_with_;
    if (reason != 0) {
      ++failures_;
      return fail(reason);
    }
    if (fault_ == Fault::kNone || operations_.size() < at_) return false;
    if (fault_ == Fault::kShortWrite) {
      if (happened_) return std::exchange(rest_of_write_fails_, false) && fail(ENOSPC);
      if (shortened == nullptr) return false;
      *shortened = happened_ = rest_of_write_fails_ = true;
      return false;
    }
    if (fault_ == Fault::kIoError || fault_ == Fault::kNoSpace) {
      if (std::exchange(happened_, true)) return false;
      return fail(fault_ == Fault::kIoError ? EIO : ENOSPC);
    }
    happened_ = true;
    crash();
    return fail(EIO);
  }

  void note(Change change) {
    if (saved_) changes_.push_back(std::move(change));
  }

  static bool fail(int reason) {
    errno = reason;
    return true;
  }

  void set_unsynced(int descriptor, bool unsynced) {
    for (auto& [number, file] : files_) {
      if (number == descriptor) file.unsynced = unsynced;
    }
  }

  // A second link to a file about to lose its name; empty for a folder or nothing.
  std::string saved(const std::string& path) {
    if (!saved_) return "";
    std::string link = *saved_ / std::to_string(operations_.size());
    return ::link(path.c_str(), link.c_str()) == 0 ? link : "";
  }

  static std::string folder_of(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

  void forget_changes_in(const std::string& folder) {
    for (size_t i = 0; i < changes_.size();) {
      if (folder_of(changes_[i].path) != folder) {
        ++i;
        continue;
      }
      const Change change = changes_[i];
      changes_.erase(changes_.begin() + static_cast<ptrdiff_t>(i));
      if (change.kind == Change::kRemovedFolder) {
        // Earlier changes inside it have disappeared with it.
        const auto inside = [&](const Change& earlier) { return earlier.path.starts_with(change.path + "/"); };
        const auto gone = std::remove_if(changes_.begin(), changes_.begin() + static_cast<ptrdiff_t>(i), inside);
        const auto end = changes_.begin() + static_cast<ptrdiff_t>(i);
        i = static_cast<size_t>(gone - changes_.begin());
        changes_.erase(gone, end);
      }
      if (change.kind != Change::kMoved) continue;
      // It can no longer be undone, so earlier changes inside the folder are now under the new name.
      for (size_t j = 0; j < i; ++j) move_inside(changes_[j], change);
    }
  }

  static void move_inside(Change& earlier, const Change& move) {
    for (std::string* path : {&earlier.path, &earlier.to}) {
      if (path->starts_with(move.path + "/")) *path = move.to + path->substr(move.path.size());
    }
  }

  void lose_unsynced() {
    for (const auto& [number, file] : files_) {
      struct stat status {};
      if (file.unsynced && ::fstat(file.copy, &status) == 0 && ::ftruncate(file.copy, status.st_size / 2) != 0) {
        TP_CHECK(false, "cannot truncate: {}", std::strerror(errno));
      }
    }
    for (size_t i = changes_.size(); i-- > 0;) undo(changes_[i]);
    changes_.clear();
  }

  void undo(const Change& change) const {
    std::error_code code;
    const bool is_removal = change.kind == Change::kUnlinked || change.kind == Change::kRemovedFolder;
    if (fault_ == Fault::kPowerLossAfterRemovals && is_removal) return;
    switch (change.kind) {
      case Change::kMade:
        std::filesystem::remove_all(change.path, code);
        break;
      case Change::kMoved:
        // It may have been removed in the meantime.
        if (std::filesystem::exists(change.to, code)) std::filesystem::rename(change.to, change.path, code);
        if (!change.saved.empty()) std::filesystem::rename(change.saved, change.to, code);
        break;
      case Change::kUnlinked:
        if (!change.saved.empty()) std::filesystem::rename(change.saved, change.path, code);
        break;
      case Change::kRemovedFolder:
        std::filesystem::create_directory(change.path, code);
        break;
    }
    TP_CHECK(!code, "cannot undo what was done to {}: {}", change.path, code.message());
  }

  const Fault fault_;
  const size_t at_;
  std::vector<std::string> operations_;
  std::string failing_;
  int failing_with_ = 0, once_with_ = 0;
  bool half_first_ = false;
  size_t failures_ = 0;
  bool happened_ = false;
  bool crashed_ = false;
  bool rest_of_write_fails_ = false;
  std::vector<std::pair<int, OpenFile>> files_;
  std::vector<Change> changes_;
  std::optional<ScratchFolder> saved_;  // only if something may have to be restored
};

}  // namespace thinpipe::test
