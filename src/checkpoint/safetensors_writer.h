// A safetensors file written tensor by tensor, so that only one of them need be in memory. The header comes first and
// holds all names and shapes, so those are given at the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/files.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {

// The file appears under its name with commit(); destroyed before that, it leaves nothing. One thread.
class SafetensorsWriter {
 public:
  // As write_safetensors(), but the tensors' `bytes` are not looked at.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::span<const SafetensorsTensor> tensors,
                                          const SafetensorsMetadata& metadata = {});

  // The whole of the next tensor, in the order they were given.
  Status append(std::span<const std::byte> bytes);
  // After the last tensor.
  Status commit();

 private:
  SafetensorsWriter(AtomicFile file, std::vector<uint64_t> sizes) : file_(std::move(file)), sizes_(std::move(sizes)) {}

  AtomicFile file_;
  std::vector<uint64_t> sizes_;
  size_t next_ = 0;
};

}  // namespace thinpipe
