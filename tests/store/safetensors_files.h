// Handmade safetensors files, so that the reader is not only tested with our own writer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace thinpipe::test {

// Length, header and data as given, without padding or correction.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  file += header;
  file += data;
  return file;
}

}  // namespace thinpipe::test
