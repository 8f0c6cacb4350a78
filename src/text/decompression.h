// Decompresses a file of a corpus as a stream, by zlib or libzstd. Stands between the file's bytes and what reads them
// (byte_reader.h), which sees no difference from a file that is not compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "text/byte_reader.h"

namespace thinpipe {

// How a file is compressed, by the last part of its name: .gz or .zst.
enum class Compression { kNone, kGzip, kZstd };
Compression compression_of(const std::filesystem::path& path);
// Without that part.
std::filesystem::path plain_name(const std::filesystem::path& path);

// A file may hold this many times its size, plus the allowance for tiny files. Text shrinks 3 to 20 times, a
// decompression bomb holds a thousand times its size and more. The allowance is small because a folder may hold many
// files. So no corpus takes more than a fixed multiple of the disk that it is stored on.
inline constexpr uint64_t kMostTimesCompressed = 100;
inline constexpr uint64_t kCompressedAllowanceBytes = 1 << 20;

// The window of a zstd frame is memory that its reader needs. `zstd` without --long never needs more.
inline constexpr int kMostZstdWindowLog = 27;

// The bytes that `compressed`, the file at `path`, stands for: all its members or frames, one after another. Wherever
// those end, next() gives pieces of the same size. Errors name the file and how far it was read. `compression` must not
// be kNone.
std::unique_ptr<ByteReader> decompressed(Compression compression, std::unique_ptr<ByteReader> compressed,
                                         const std::filesystem::path& path);

}  // namespace thinpipe
