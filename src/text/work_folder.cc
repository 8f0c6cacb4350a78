#include "text/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

Error system_error(std::string_view action, const fs::path& path) {
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

std::string partial_prefix(const fs::path& target) { return "." + target.filename().string() + ".partial-"; }

void remove_leftovers(const fs::path& target) {
  std::error_code code;
  for (fs::directory_iterator entry(target.parent_path(), code); !code && entry != fs::directory_iterator();
       entry.increment(code)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with(partial_prefix(target))) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

Result<FileLock> FileLock::acquire(const fs::path& path, const std::function<void()>& on_wait) {
  for (bool waited = false;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) return system_error("write", path);
    FileLock lock(path, descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (!std::exchange(waited, true)) on_wait();
      if (!lock_waiting(descriptor)) {
        const Error error = system_error("lock", path);
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

Result<WorkFolder> WorkFolder::create(const fs::path& target) {
  remove_leftovers(target);
  std::string path = (target.parent_path() / (partial_prefix(target) + "XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr) return system_error("create folder", path);
  ::chmod(path.c_str(), 0755);
  return WorkFolder(target, path);
}

WorkFolder::WorkFolder(WorkFolder&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, fs::path())) {}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Status WorkFolder::publish() {
  std::error_code code;
  fs::remove_all(target_, code);
  if (code) return Error{fmt::format("cannot replace {}: {}", target_.string(), code.message())};
  if (::rename(path_.c_str(), target_.c_str()) != 0) return system_error("create", target_);
  path_.clear();
  // The rename itself must reach the disk; a file system that cannot sync a folder has nothing to lose by it.
  const int parent = ::open(target_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent >= 0) {
    ::fsync(parent);
    ::close(parent);
  }
  return {};
}

}  // namespace thinpipe
