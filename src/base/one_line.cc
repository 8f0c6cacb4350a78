#include "base/one_line.h"

#include <algorithm>

namespace thinpipe {

std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kMaxLineBytes));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return line;
}

}  // namespace thinpipe
