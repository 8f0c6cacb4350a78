// The columns that topk sends for each row, as bytes (docs/wire.md). Needs no libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace thinpipe {

// columns: of a matrix of that width. out: id_bytes(width) each (boundary/sizes.h).
void write_columns(std::span<const int64_t> columns, int64_t width, std::span<std::byte> out);

// in: from a peer, possibly hostile. out: (rows, keep). Returns an error unless `in` has id_bytes(width) per column and
// the columns of every row are strictly ascending and below the width.
Status read_columns(std::span<const std::byte> in, int64_t keep, int64_t width, std::span<int64_t> out);

}  // namespace thinpipe
