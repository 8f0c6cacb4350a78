// ggml's q8_0: 32 values of a row as a 16-bit scale and 32 signed bytes. Private to this folder.
#pragma once

#include <span>
#include <string>

#include "base/result.h"

namespace thinpipe {

// The blocks one after the other; the values are a multiple of 32, rows not crossed by a block. An error names the
// first value whose block has no finite scale; it does not name the tensor.
Result<std::string> q8_blocks(std::span<const float> values);

}  // namespace thinpipe
