// The JSON header of a safetensors file, read event by event: nothing is built that the format does not have, so a
// hostile header costs neither stack nor more memory than its own size allows. Private to this folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {

struct SafetensorsHeader {
  struct Entry {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<int64_t> shape;
    // Relative to the first byte after the header; begin <= end is not yet checked.
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<Entry> entries;  // in the order they stand
  SafetensorsMetadata metadata;
};

// Errors do not name the file.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json);

// Text from the file as it may stand in an error: quoted, one line, ASCII, not long.
std::string quoted_for_error(std::string_view text);

}  // namespace thinpipe
