#include "base/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/result.h"

namespace thinpipe {
namespace {

std::atomic<FileSystem*> replacement_in_use{nullptr};

}  // namespace

int FileSystem::create_unique(std::string& pattern, mode_t mode) {
  const int descriptor = ::mkostemp(pattern.data(), O_CLOEXEC);  // 0600
  if (descriptor >= 0) ::fchmod(descriptor, mode);
  return descriptor;
}

ssize_t FileSystem::write(int descriptor, const char* bytes, size_t count) { return ::write(descriptor, bytes, count); }

ssize_t FileSystem::pwrite(int descriptor, const char* bytes, size_t count, int64_t offset) {
  return ::pwrite(descriptor, bytes, count, offset);
}

int FileSystem::fsync(int descriptor) { return ::fsync(descriptor); }
int FileSystem::close(int descriptor) { return ::close(descriptor); }

int FileSystem::rename(const std::string& from, const std::string& to) { return ::rename(from.c_str(), to.c_str()); }

int FileSystem::unlink(const std::string& path) { return ::unlink(path.c_str()); }
int FileSystem::mkdir(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
int FileSystem::rmdir(const std::string& path) { return ::rmdir(path.c_str()); }

int FileSystem::sync_directory(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  const int result = ::fsync(folder);
  const int reason = errno;
  ::close(folder);
  errno = reason;
  return result;
}

FileSystem& file_system() {
  static FileSystem real;
  FileSystem* const replacement = replacement_in_use.load();
  return replacement == nullptr ? real : *replacement;
}

ScopedFileSystem::ScopedFileSystem(FileSystem& replacement) {
  FileSystem* none = nullptr;
  TP_CHECK(replacement_in_use.compare_exchange_strong(none, &replacement), "two ScopedFileSystems at the same time");
}

ScopedFileSystem::~ScopedFileSystem() { replacement_in_use = nullptr; }

}  // namespace thinpipe
