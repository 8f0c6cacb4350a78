// Compressed text for tests, by the libraries, and bombs that are put together by hand.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe::test {

// One member. An empty one has 20 bytes.
inline std::string gzip(std::string_view text) {
  z_stream stream{};
  constexpr int kGzipOnly = 16;
  TP_CHECK(::deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + kGzipOnly, 9, Z_DEFAULT_STRATEGY) == Z_OK, "no zlib");
  std::string bytes(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  TP_CHECK(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "the bound was too small");
  bytes.resize(stream.total_out);
  ::deflateEnd(&stream);
  return bytes;
}

// One frame, with a checksum.
inline std::string zstd(std::string_view text) {
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string bytes(::ZSTD_compressBound(text.size()), '\0');
  const size_t size = ::ZSTD_compress2(context, bytes.data(), bytes.size(), text.data(), text.size());
  TP_CHECK(::ZSTD_isError(size) == 0, "{}", ::ZSTD_getErrorName(size));
  bytes.resize(size);
  ::ZSTD_freeCCtx(context);
  return bytes;
}

// A frame that holds "hello" and wants a window of 2^log bytes; RFC 8878, section 3.1.1.
inline std::string zstd_with_window(int log) {
  return "\x28\xB5\x2F\xFD" + std::string(1, '\0') + static_cast<char>((log - 10) << 3) + "\x29" +
         std::string(2, '\0') + "hello";
}

// A frame of `blocks` blocks, each 128 KiB of zeros in four bytes.
inline std::string zstd_bomb(size_t blocks) {
  std::string bytes = "\x28\xB5\x2F\xFD" + std::string(1, '\0') + static_cast<char>((17 - 10) << 3);
  for (size_t i = 1; i <= blocks; ++i) {
    bytes += static_cast<char>(i == blocks ? 3 : 2);
    bytes += std::string("\0\x10\0", 3);
  }
  return bytes;
}

}  // namespace thinpipe::test
