// The system calls by which files.h changes the disk, behind one seam: tests put a failing disk or a killed process in
// their place. Reading does not pass through here.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace thinpipe {

// Each function is the call of its name, with its contract: -1 and errno when it failed. Paths are as the caller gave
// them. May be called from any thread.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The last six characters of `pattern` are XXXXXX and become what makes the name new. The descriptor. From its first
  // moment the file has no rights beyond `mode`, 0600 or more.
  virtual int create_unique(std::string& pattern, mode_t mode);
  virtual ssize_t write(int descriptor, const char* bytes, size_t count);
  virtual ssize_t pwrite(int descriptor, const char* bytes, size_t count, int64_t offset);
  virtual int fsync(int descriptor);
  virtual int close(int descriptor);

  virtual int rename(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int mkdir(const std::string& path);
  virtual int rmdir(const std::string& path);
  // Puts the names in a folder on the disk, as fsync does with a file's bytes.
  virtual int sync_directory(const std::string& path);
};

// The one in use: the real one unless a ScopedFileSystem lives.
FileSystem& file_system();

// Puts another in its place for the whole process. Not while other threads write files, nor two at once.
class ScopedFileSystem {
 public:
  explicit ScopedFileSystem(FileSystem& replacement);
  ~ScopedFileSystem();
  ScopedFileSystem(const ScopedFileSystem&) = delete;
  ScopedFileSystem& operator=(const ScopedFileSystem&) = delete;
};

}  // namespace thinpipe
