// Files: read whole, map, or write so that a reader sees the old file or the new one and never a part of it. All that
// changes the disk goes through file_system.h.
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

// Owns a descriptor and closes it; -1 is none. For reading, sockets and locks: what is written durably goes through
// AtomicFile, whose close() is behind the FileSystem seam.
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
  // Closes what it holds, without touching errno, and owns `descriptor` instead.
  void reset(int descriptor = -1);

 private:
  int descriptor_;
};

// $THINPIPE_DATA_DIR, else $XDG_DATA_HOME/thinpipe, else ~/.local/share/thinpipe. Not created.
std::filesystem::path data_dir();

Result<std::string> read_file(const std::filesystem::path& path);
// 64 hex digits, reading the file in pieces: its size does not matter, and a failing disk is an error, not a signal.
Result<std::string> sha256_of_file(const std::filesystem::path& path);
// For secrets: refuses a file that others than its owner may read, and names the command that mends it.
Result<std::string> read_private_file(const std::filesystem::path& path);
// Also those above it; the names of new ones are on the disk when it returns.
Status make_directories(const std::filesystem::path& path);
// Replaces a file or an empty folder of that name. On the disk only after sync_directory() of what holds the names.
Status rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Puts the names in a folder on the disk. Not an error on file systems that cannot sync a directory.
Status sync_directory(const std::filesystem::path& path);
// A file, or a folder with all it holds; links are removed, not followed. Nothing there: ok.
Status remove_tree(const std::filesystem::path& path);
// What a folder holds, but not the folder.
Status remove_contents(const std::filesystem::path& folder);

enum class FileMode { kPublic, kPrivate };  // 0644, 0600

// A file that appears under its name only with commit(): written beside it, flushed to the disk, renamed. Destroyed
// without commit(), it leaves nothing behind; what a killed process has left, the next writer of that name removes. A
// link stands for the file behind it; a folder, a device or a pipe is refused. Every error names the file and the
// system's reason. When commit() fails, the old file is still there, or, if only the last flush of the folder failed,
// the new one, whole.
class AtomicFile {
 public:
  // The file has its mode from the first byte on.
  static Result<AtomicFile> create(const std::filesystem::path& path, FileMode mode = FileMode::kPublic);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  Status append(std::string_view bytes);
  // Overwrites bytes already written, for headers that hold a count.
  Status write_at(uint64_t offset, std::string_view bytes);
  Status commit();

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int descriptor);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_;
};

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes,
                             FileMode mode = FileMode::kPublic);

// A folder that appears under its name only with commit(): it is built in path(), a hidden folder beside it, and
// renamed. Destroyed without commit(), it leaves nothing behind; what a killed process has left, the next one that
// builds the same folder removes. When commit() fails, there is no folder of that name, or, if only the last flush
// failed, the whole one.
class AtomicFolder {
 public:
  // Waits while another process builds the same folder, so look at what is there after it, not before. `on_wait` is
  // called once before it waits; without one, it logs a line.
  static Result<AtomicFolder> create(const std::filesystem::path& path, const std::function<void()>& on_wait = {});
  // A new folder in `parent`: `name`, or name-2, name-3... if that is there or is being built.
  static Result<AtomicFolder> create_new(const std::filesystem::path& parent, const std::string& name);
  ~AtomicFolder();
  AtomicFolder(AtomicFolder&& other) noexcept;
  AtomicFolder& operator=(AtomicFolder&&) = delete;

  // Removes the hidden folders in `parent` whose processes were killed, whatever their names. What cannot be removed
  // stays. For folders that hold nothing but what an AtomicFolder made.
  static void remove_abandoned(const std::filesystem::path& parent);

  const std::filesystem::path& path() const { return path_; }      // where to write; empty after commit()
  const std::filesystem::path& target() const { return target_; }  // absolute: where it will be
  // Whether it would take the place of something that is not an empty folder: commit() will fail.
  bool is_taken() const;
  Status commit();

 private:
  // Nothing if another process builds it and there is no `on_wait`.
  static Result<std::optional<AtomicFolder>> open(const std::filesystem::path& path,
                                                  const std::function<void()>& on_wait);
  AtomicFolder(std::filesystem::path target, std::filesystem::path path, Fd lock)
      : target_(std::move(target)), path_(std::move(path)), lock_(std::move(lock)) {}

  std::filesystem::path target_;
  std::filesystem::path path_;
  Fd lock_;  // on the hidden folder
};

// A whole file mapped for reading; the bytes stay valid as long as the object lives. An empty file maps to no bytes.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::string_view bytes() const { return {data_, size_}; }

 private:
  MappedFile(const char* data, size_t size) : data_(data), size_(size) {}

  const char* data_;
  size_t size_;
};

}  // namespace thinpipe
