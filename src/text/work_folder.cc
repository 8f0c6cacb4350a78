#include "text/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLock = ".lock";
constexpr std::string_view kUnfinished = ".unfinished";

fs::path hidden_beside(const fs::path& target, std::string_view suffix) {
  return target.parent_path() / ("." + target.filename().string() + std::string(suffix));
}

Error lock_error(std::string_view action, const fs::path& path) {
  return Error{fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno))};
}

Fd open_lock(const fs::path& path) { return Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)); }

// Returns false if the last holder has unlinked the file since it was opened.
bool still_named(const Fd& file, const fs::path& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(file.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

}  // namespace

Result<FileLock> FileLock::acquire(const fs::path& path, const std::function<void()>& on_wait) {
  for (bool waited = false;;) {
    Fd file = open_lock(path);
    if (!file) return lock_error("write", path);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (!std::exchange(waited, true)) on_wait();
      while (::flock(file.get(), LOCK_EX) != 0) {
        if (errno != EINTR) return lock_error("lock", path);
      }
    }
    if (still_named(file, path)) return FileLock(path, std::move(file));
  }
}

std::optional<FileLock> FileLock::try_acquire(const fs::path& path) {
  Fd file = open_lock(path);
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 || !still_named(file, path)) return std::nullopt;
  return FileLock(path, std::move(file));
}

FileLock::~FileLock() {
  // Unlink while holding the lock: a waiter then notices that its file has lost its name, and opens the name again.
  if (file_) ::unlink(path_.c_str());
}

fs::path lock_of(const fs::path& target) { return hidden_beside(target, kLock); }

Result<WorkFolder> WorkFolder::create(const fs::path& target) {
  WorkFolder work(target, hidden_beside(target, kUnfinished));
  TRY(remove_tree(work.path_));
  TRY(make_directories(work.path_));
  return work;
}

WorkFolder::WorkFolder(WorkFolder&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, fs::path())) {}

WorkFolder::~WorkFolder() {
  if (!path_.empty()) (void)remove_tree(path_);
}

Status WorkFolder::publish() {
  TRY(remove_tree(target_));
  TRY(rename_path(path_, target_));
  path_.clear();
  return sync_directory(target_.parent_path());
}

void remove_abandoned_work(const fs::path& parent) {
  std::set<std::string> targets;
  std::error_code code;
  for (fs::directory_iterator entry(parent, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    for (const std::string_view suffix : {kLock, kUnfinished}) {
      if (!name.starts_with('.') || !name.ends_with(suffix) || name.size() <= suffix.size() + 1) continue;
      targets.insert(name.substr(1, name.size() - 1 - suffix.size()));
    }
  }
  for (const auto& target : targets) {
    if (const auto lock = FileLock::try_acquire(lock_of(parent / target))) {
      (void)remove_tree(hidden_beside(parent / target, kUnfinished));
    }
  }
}

}  // namespace thinpipe
