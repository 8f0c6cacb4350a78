// Files: read whole, map, or write atomically, so that a reader sees either the old file or the new one, never a part.
// Everything that changes the disk goes through file_system.h.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace thinpipe {

// Owns a descriptor and closes it; -1 means none. For reading, sockets and locks. Use AtomicFile for files that must
// reach the disk: its close() goes through the FileSystem seam.
class Fd {
 public:
  explicit Fd(int descriptor = -1) : descriptor_(descriptor) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.descriptor_, -1));
    return *this;
  }

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  // Closes the current descriptor without changing errno and takes ownership of `descriptor`.
  void reset(int descriptor = -1);

 private:
  int descriptor_;
};

// $THINPIPE_DATA_DIR, else $XDG_DATA_HOME/thinpipe, else ~/.local/share/thinpipe. Does not create the folder.
std::filesystem::path data_dir();

Result<std::string> read_file(const std::filesystem::path& path);
// 64 hex digits. Reads the file in pieces, so files of any size work; a failing disk is an error, not a signal.
Result<std::string> sha256_of_file(const std::filesystem::path& path);
// For secrets: refuses a file that others than its owner may read, and names the command that fixes it.
Result<std::string> read_private_file(const std::filesystem::path& path);
// Also creates missing parents. New names are on the disk when it returns.
Status make_directories(const std::filesystem::path& path);
// Replaces a file or an empty folder at `to`. To get the new name onto the disk, call sync_directory() on the parent.
Status rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Flushes the names in a folder to the disk. Not an error on file systems that cannot sync a directory.
Status sync_directory(const std::filesystem::path& path);
// Removes a file, or a folder with its contents. Removes links without following them. A missing path is not an error.
Status remove_tree(const std::filesystem::path& path);
// Empties a folder but keeps it.
Status remove_contents(const std::filesystem::path& folder);

enum class FileMode { kPublic, kPrivate };  // 0644, 0600

// A file that appears under its name only at commit(): it is written beside its target, flushed to the disk and
// renamed. Without commit(), the destructor removes it; files left by a killed process are removed by the next writer
// of the same name. A link is followed to its file; folders, devices and pipes are refused. Every error names the file
// and the system's reason. If commit() fails, the old file is still there; if only the final flush of the folder
// failed, the complete new file is there.
class AtomicFile {
 public:
  // The file has this mode from the first byte on.
  static Result<AtomicFile> create(const std::filesystem::path& path, FileMode mode = FileMode::kPublic);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  Status append(std::string_view bytes);
  // Overwrites bytes already written, for headers that hold a count.
  Status write_at(uint64_t offset, std::string_view bytes);
  // Flushes what was written so far to the disk. It can be read at temporary() until commit().
  Status flush();
  const std::filesystem::path& temporary() const { return temporary_; }
  Status commit();

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int descriptor);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_;
};

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes,
                             FileMode mode = FileMode::kPublic);

// A folder that appears under its name only at commit(): it is built in path(), a hidden folder beside it, and renamed.
// Without commit(), the destructor removes it; remains of a killed process are removed by the next process that builds
// the same folder. If commit() fails, no folder has that name; if only the final flush failed, the complete one has.
class AtomicFolder {
 public:
  // Waits while another process builds the same folder. Check what exists after this call, not before. Calls `on_wait`
  // once before it waits; default: logs a line.
  static Result<AtomicFolder> create(const std::filesystem::path& path, const std::function<void()>& on_wait = {});
  // A new folder in `parent`: `name`, or name-2, name-3... if that name exists or is being built.
  static Result<AtomicFolder> create_new(const std::filesystem::path& parent, const std::string& name);
  ~AtomicFolder();
  AtomicFolder(AtomicFolder&& other) noexcept;
  AtomicFolder& operator=(AtomicFolder&&) = delete;

  // Removes the hidden folders in `parent` whose processes were killed, whatever their names. What cannot be removed
  // stays. For folders that hold nothing but what an AtomicFolder made.
  static void remove_abandoned(const std::filesystem::path& parent);

  const std::filesystem::path& path() const { return path_; }      // where to write; empty after commit()
  const std::filesystem::path& target() const { return target_; }  // absolute path of the finished folder
  // Whether something other than an empty folder is at target(), so that commit() will fail.
  bool is_taken() const;
  Status commit();

 private:
  // Returns nothing if another process is building the folder and there is no `on_wait`.
  static Result<std::optional<AtomicFolder>> open(const std::filesystem::path& path,
                                                  const std::function<void()>& on_wait);
  AtomicFolder(std::filesystem::path target, std::filesystem::path path, Fd lock)
      : target_(std::move(target)), path_(std::move(path)), lock_(std::move(lock)) {}

  std::filesystem::path target_;
  std::filesystem::path path_;
  Fd lock_;  // on the hidden folder
};

// Locks a folder while the descriptor is open, and makes the folder if it is missing. Returns no descriptor if another
// process has locked it. On a file system without locks everybody gets one.
Result<Fd> lock_folder(const std::filesystem::path& folder);

// A whole file mapped for reading; the bytes stay valid as long as the object lives. An empty file maps to no bytes.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::string_view bytes() const { return {data_, size_}; }
  // Gives the memory of these bytes back to the system. They stay valid: reading them again reads the file again. For
  // files that are read once and may be larger than the memory that is left.
  void forget(std::string_view part) const;

 private:
  MappedFile(const char* data, size_t size) : data_(data), size_(size) {}

  const char* data_;
  size_t size_;
};

}  // namespace thinpipe
