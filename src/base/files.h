// Files: read whole, map, or write so that a reader sees the old file or the new one and never a part of it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

// $THINPIPE_DATA_DIR, else $XDG_DATA_HOME/thinpipe, else ~/.local/share/thinpipe. Not created.
std::filesystem::path data_dir();

Result<std::string> read_file(const std::filesystem::path& path);
Status make_directories(const std::filesystem::path& path);

// A file that appears under its name only when commit() has succeeded: written beside it, flushed to the disk, renamed.
// Destroyed without commit(), it leaves nothing behind. Every error names the file and the system's reason.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::filesystem::path& path);
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

Status write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

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
