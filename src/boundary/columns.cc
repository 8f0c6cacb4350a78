#include "boundary/columns.h"

#include <fmt/format.h>

#include <cstring>

#include "boundary/sizes.h"

namespace thinpipe {

void write_columns(std::span<const int64_t> columns, int64_t width, std::span<std::byte> out) {
  const size_t bytes = id_bytes(width);
  TP_CHECK(out.size() == columns.size() * bytes, "{} columns into {} bytes", columns.size(), out.size());
  auto* at = out.data();
  for (const int64_t one : columns) {
    const auto column = static_cast<uint32_t>(one);
    std::memcpy(at, &column, bytes);  // little-endian
    at += bytes;
  }
}

Status read_columns(std::span<const std::byte> in, int64_t keep, int64_t width, std::span<int64_t> out) {
  const size_t bytes = id_bytes(width);
  if (in.size() != out.size() * bytes) {
    return Error{fmt::format("{} bytes for {} columns: needs {}", in.size(), out.size(), out.size() * bytes)};
  }
  int64_t before = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % static_cast<size_t>(keep) == 0) before = -1;
    uint32_t column = 0;
    std::memcpy(&column, in.data() + i * bytes, bytes);
    if (column <= before || column >= width) {
      return Error{fmt::format("row {} names column {} after {}; needs ascending columns below {}",
                               i / static_cast<size_t>(keep), column, before, width)};
    }
    before = out[i] = column;
  }
  return {};
}

}  // namespace thinpipe
