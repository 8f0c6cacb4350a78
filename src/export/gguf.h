// The GGUF container, version 3, little-endian: a header of keys and values, the tensors' names, shapes and places,
// then their bytes, each at a multiple of 32. Written tensor by tensor; it knows nothing of any model (gguf_llama.h
// does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe {

constexpr uint64_t kGgufAlignment = 32;

// The numbers the format has for them.
enum class GgmlType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBf16 = 30 };

// Values of a row that are stored together, and the bytes they take.
int64_t ggml_block_values(GgmlType type);
int64_t ggml_block_bytes(GgmlType type);

// Keys and values in the order they were added. Texts need not be UTF-8.
class GgufMetadata {
 public:
  void add_uint32(std::string_view key, uint32_t value);
  void add_float32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_texts(std::string_view key, std::span<const std::string> values);
  void add_float32s(std::string_view key, std::span<const float> values);
  void add_int32s(std::string_view key, std::span<const int32_t> values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, uint32_t type);

  std::string bytes_;
  uint64_t count_ = 0;
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // slowest first, as everywhere here; the file has them the other way round
  GgmlType type = GgmlType::kF32;

  // The last length must be a multiple of ggml_block_values(type).
  uint64_t bytes() const;
};

// The file appears under its name with commit(); destroyed before that, it leaves nothing. One thread.
class GgufWriter {
 public:
  static Result<GgufWriter> create(const std::filesystem::path& path, const GgufMetadata& metadata,
                                   std::span<const GgufTensor> tensors);

  // The whole of the next tensor, in the order they were given.
  Status append(std::string_view bytes);
  // After the last tensor.
  Status commit();

 private:
  GgufWriter(AtomicFile file, std::vector<uint64_t> sizes) : file_(std::move(file)), sizes_(std::move(sizes)) {}

  AtomicFile file_;
  std::vector<uint64_t> sizes_;
  size_t next_ = 0;
};

}  // namespace thinpipe
