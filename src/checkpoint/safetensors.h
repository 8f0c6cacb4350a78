// The safetensors format: 8 bytes with the little-endian length of a JSON header, the header (name -> dtype, shape,
// data_offsets; "__metadata__" -> texts), then the tensors' bytes, back to back to the end of the file. Bytes only: no
// tensor library is needed here. Files come from anywhere, so the reader believes nothing it has not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {

enum class Dtype { kF64, kF32, kF16, kBf16, kI64, kI32, kI16, kI8, kU8, kBool };

// "F32", "BF16": the format's names.
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);
int64_t dtype_bytes(Dtype dtype);

// Bytes of a tensor; nothing when a length is negative or their product (zeros aside) overflows int64.
std::optional<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape);

// A tensor in a file or on its way into one. Does not own the bytes, which are little-endian, row-major and not
// necessarily aligned to the dtype.
struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// Limits on what is read and written; real files are far below them.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
constexpr size_t kMaxSafetensorsTensors = size_t{1} << 20;
constexpr size_t kMaxSafetensorsRank = 32;

// A file that has been checked throughout: names are unique; every tensor's bytes lie inside the file and are as many
// as its shape and dtype say; together they fill it, without overlap, hole or rest.
class SafetensorsFile {
 public:
  // Maps the file; the tensors' bytes live as long as this object (or what it is moved into). The file must not be
  // truncated by others meanwhile, which AtomicFile's replacing never does.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  // The same on bytes the caller keeps alive; source_name stands for the file in errors.
  static Result<SafetensorsFile> parse(std::string_view file, std::string_view source_name);

  // In the order of their bytes.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // nullptr when there is none of that name.
  const SafetensorsTensor* find(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  std::optional<MappedFile> mapping_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  SafetensorsMetadata metadata_;
};

// Writes the tensors in the given order; the same input gives the same bytes. The file appears only when all of it is
// on the disk. Names must be distinct, not "__metadata__", valid UTF-8, and the bytes as many as shape and dtype say.
Status write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                         const SafetensorsMetadata& metadata = {});

}  // namespace thinpipe
