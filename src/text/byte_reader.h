// The bytes of one file of a corpus, from its beginning to its end, decompressed.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

// For one thread.
class ByteReader {
 public:
  virtual ~ByteReader() = default;

  // The next bytes, valid until the next call; empty at the end. An error names the file and ends the reading.
  virtual Result<std::string_view> next() = 0;
};

// Decompresses a file that is named .gz or .zst (decompression.h). Never null. A file that cannot be opened is an error
// of the first next().
std::unique_ptr<ByteReader> read_bytes_of(const std::filesystem::path& path);

}  // namespace thinpipe
