#include "text/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/files.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

Error folder_error(std::string_view action, const fs::path& path) {
  return Error{fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno))};
}

// Whether the descriptor is still the file of that name, and not one that its last holder has unlinked.
bool still_named(int descriptor, const fs::path& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

bool lock_waiting(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

constexpr std::string_view kUnfinished = ".unfinished";

}  // namespace

Result<FileLock> FileLock::acquire(const fs::path& path, const std::function<void()>& on_wait) {
  for (bool waited = false;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) return folder_error("write", path);
    FileLock lock(path, descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (!std::exchange(waited, true)) on_wait();
      if (!lock_waiting(descriptor)) {
        const Error error = folder_error("lock", path);
        ::close(std::exchange(lock.descriptor_, -1));
        return error;
      }
    }
    if (still_named(descriptor, path)) return lock;
    ::close(std::exchange(lock.descriptor_, -1));  // the name is not ours to remove
  }
}

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  // Unlinked while held: whoever waits for this descriptor finds it nameless and opens the name again.
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

std::optional<FileLock> FileLock::try_acquire(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return std::nullopt;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && still_named(descriptor, path)) return FileLock(path, descriptor);
  ::close(descriptor);
  return std::nullopt;
}

fs::path lock_of(const fs::path& target) { return target.parent_path() / ("." + target.filename().string() + ".lock"); }

fs::path unfinished_of(const fs::path& target) {
  return target.parent_path() / ("." + target.filename().string() + std::string(kUnfinished));
}

Result<WorkFolder> WorkFolder::open(const fs::path& target) {
  const fs::path path = unfinished_of(target);
  if (auto status = make_directories(path); !status) {
    std::error_code ignored;
    fs::remove(path, ignored);  // only if it is empty: made just now, and not made safe
    return status.error();
  }
  return WorkFolder(target, path);
}

WorkFolder::WorkFolder(WorkFolder&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, fs::path())), kept_(other.kept_) {}

WorkFolder::~WorkFolder() {
  if (!path_.empty() && !kept_) (void)remove_tree(path_);
}

Status WorkFolder::clear_except(std::initializer_list<std::string_view> names) const {
  std::error_code code;
  std::vector<fs::path> others;
  for (fs::directory_iterator entry(path_, code), end; !code && entry != end; entry.increment(code)) {
    const auto is_named = [&](std::string_view name) { return entry->path().filename() == name; };
    if (std::none_of(names.begin(), names.end(), is_named)) others.push_back(entry->path());
  }
  if (code) return Error{fmt::format("cannot read folder {}: {}", path_.string(), code.message())};
  for (const auto& path : others) {
    if (auto status = remove_tree(path); !status) return status;
  }
  return {};
}

Status WorkFolder::publish() {
  if (auto status = remove_tree(target_); !status) return status;
  if (auto status = rename_path(path_, target_); !status) return status;
  path_.clear();
  return sync_directory(target_.parent_path());
}

std::vector<std::string> unfinished_in(const fs::path& parent) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator entry(parent, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') || !name.ends_with(kUnfinished) || name.size() <= kUnfinished.size() + 1) continue;
    names.push_back(name.substr(1, name.size() - 1 - kUnfinished.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void remove_unfinished(const fs::path& parent, fs::file_time_type before) {
  for (const auto& name : unfinished_in(parent)) {
    std::error_code code;
    const fs::path folder = unfinished_of(parent / name);
    // A folder's time is that of the last file made or renamed in it, as every durable point does.
    const auto written = fs::last_write_time(folder, code);
    if (code || written >= before) continue;
    const auto lock = FileLock::try_acquire(lock_of(parent / name));
    if (lock) (void)remove_tree(folder);
  }
}

}  // namespace thinpipe
