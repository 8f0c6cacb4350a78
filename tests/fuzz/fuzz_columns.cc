// Reads any bytes as the columns of a topk message; the first two choose how many per row and the width. What is
// accepted is ascending in each row, below the width, and is written back as the same bytes.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/result.h"
#include "boundary/columns.h"
#include "boundary/sizes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  if (size < 2) return 0;
  const int64_t keep = 1 + data[0] % 8;
  const int64_t width = (data[1] % 2 == 0 ? 1 : 65536) + data[1];
  std::vector<std::byte> bytes(size - 2);
  if (!bytes.empty()) std::memcpy(bytes.data(), data + 2, bytes.size());
  const size_t row_bytes = static_cast<size_t>(keep) * id_bytes(width), rows = bytes.size() / row_bytes;
  std::vector<int64_t> columns(rows * static_cast<size_t>(keep));
  const bool accepted = read_columns(bytes, keep, width, columns).ok();
  if (!accepted) return 0;
  TP_CHECK(bytes.size() == rows * row_bytes, "accepted a wrong size");
  for (size_t i = 0; i < columns.size(); ++i) {
    TP_CHECK(columns[i] >= 0 && columns[i] < width, "column {} of {}", columns[i], width);
    TP_CHECK(i % static_cast<size_t>(keep) == 0 || columns[i] > columns[i - 1], "not ascending");
  }
  std::vector<std::byte> again(bytes.size());
  write_columns(columns, width, again);
  TP_CHECK(again == bytes, "written back as other bytes");
  return 0;
}
