// The system calls that files.h uses to change the disk, behind one seam, so that tests can simulate a failing disk or
// a killed process. Reading does not go through here.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace thinpipe {

// Each function behaves like the system call of the same name: on failure it returns -1 and sets errno. Paths are used
// as given. Any thread may call them.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Replaces the six X at the end of `pattern` (XXXXXX) so that the name is new, and returns the descriptor. The file
  // never has more rights than `mode`, which is at least 0600.
  virtual int create_unique(std::string& pattern, mode_t mode);
  virtual ssize_t write(int descriptor, const char* bytes, size_t count);
  virtual ssize_t pwrite(int descriptor, const char* bytes, size_t count, int64_t offset);
  virtual int fsync(int descriptor);
  virtual int close(int descriptor);

  virtual int rename(const std::string& from, const std::string& to);
  virtual int unlink(const std::string& path);
  virtual int mkdir(const std::string& path);
  virtual int rmdir(const std::string& path);
  // Flushes the names in a folder to the disk, as fsync does with a file's bytes.
  virtual int sync_directory(const std::string& path);
};

// The real file system, or the replacement while a ScopedFileSystem exists.
FileSystem& file_system();

// Replaces the file system for the whole process. Allowed only while no other thread writes files, and one at a time.
class ScopedFileSystem {
 public:
  explicit ScopedFileSystem(FileSystem& replacement);
  ~ScopedFileSystem();
  ScopedFileSystem(const ScopedFileSystem&) = delete;
  ScopedFileSystem& operator=(const ScopedFileSystem&) = delete;
};

}  // namespace thinpipe
