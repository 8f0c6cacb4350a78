// The safetensors format: 8 bytes with the little-endian length of a JSON header, the header (name -> dtype, shape,
// data_offsets; "__metadata__" -> texts), then the tensors' bytes, adjacent, up to the end of the file. This code works
// with bytes and needs no tensor library. A file may come from anywhere, so the reader checks everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {

enum class Dtype { kF64, kF32, kF16, kBf16, kI64, kI32, kI16, kI8, kU8, kBool };

// The names of the format: "F32", "BF16".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);
int64_t dtype_bytes(Dtype dtype);

// Bytes of a tensor; nothing if a length is negative or the product of the non-zero lengths overflows int64.
std::optional<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape);

// A tensor in a file, or to be written to one. Does not own the bytes, which are little-endian, row-major and not
// necessarily aligned to the dtype.
struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// Limits for reading and writing; real files are far below them.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
constexpr size_t kMaxSafetensorsTensors = size_t{1} << 20;
constexpr size_t kMaxSafetensorsRank = 32;

// A file that has been checked: names are unique; the size of each tensor matches its shape and dtype; the tensors fill
// the rest of the file without overlaps, gaps or extra bytes.
class SafetensorsFile {
 public:
  // Maps the file; the tensors' bytes live as long as this object (or what it is moved into). Nobody may truncate the
  // file meanwhile; AtomicFile replaces files and never truncates them.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  // The same for bytes that the caller keeps alive; errors call the file source_name.
  static Result<SafetensorsFile> parse(std::string_view file, std::string_view source_name);

  // In the order of their bytes.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // nullptr if there is no tensor of that name.
  const SafetensorsTensor* find(std::string_view name) const;
  // Gives the memory of a tensor's bytes back to the system once they have been used (MappedFile::forget).
  void forget(const SafetensorsTensor& tensor) const;

 private:
  SafetensorsFile() = default;

  std::optional<MappedFile> mapping_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  SafetensorsMetadata metadata_;
};

// Writes a file tensor by tensor, so that only one of them is in memory. The header comes first, so all names and
// shapes are given at the start. The file appears under its name at commit(); without it, nothing is left. For one
// thread.
class SafetensorsWriter {
 public:
  // Ignores the tensors' `bytes`. Names must be distinct, valid UTF-8 and not "__metadata__".
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                                          const SafetensorsMetadata& metadata = {});

  // All bytes of the next tensor, in the given order; their number must match its shape and dtype.
  Status append(std::span<const std::byte> bytes);
  // Call it after the last tensor.
  Status commit();

 private:
  SafetensorsWriter(AtomicFile file, std::vector<uint64_t> sizes) : file_(std::move(file)), sizes_(std::move(sizes)) {}

  AtomicFile file_;
  std::vector<uint64_t> sizes_;
  size_t next_ = 0;
};

// Writes all tensors, with their `bytes`, in the given order. The same input gives the same file.
Status write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                         const SafetensorsMetadata& metadata = {});

// Text from a file for an error message: quoted, on one line, ASCII, at most about 80 characters.
std::string quoted_for_error(std::string_view text);

}  // namespace thinpipe
