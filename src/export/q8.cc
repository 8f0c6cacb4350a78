#include "export/q8.h"

#include <algorithm>
#include <cmath>

#include "export/number_bytes.h"

namespace thinpipe {

Result<std::string> q8_blocks(std::span<const float> values) {
  constexpr size_t kBlock = 32;
  TP_CHECK(values.size() % kBlock == 0, "{} values in blocks of {}", values.size(), kBlock);
  std::string bytes;
  bytes.reserve(values.size() / kBlock * (kBlock + 2));
  for (size_t first = 0; first < values.size(); first += kBlock) {
    float largest = 0;
    size_t at = first;
    // Written so that NaN is taken for the largest, and stays so.
    for (size_t i = first; i < first + kBlock && !std::isnan(largest); ++i) {
      if (std::fabs(values[i]) <= largest) continue;
      largest = std::fabs(values[i]);
      at = i;
    }
    const float scale = largest / 127;
    const uint16_t stored = to_f16(scale);
    if ((stored & 0x7c00) == 0x7c00) {
      return Error{fmt::format("value {} is {}, which Q8_0 (at most 8319008) cannot hold", at, values[at])};
    }
    bytes += static_cast<char>(stored & 0xff);
    bytes += static_cast<char>(stored >> 8);
    // By the scale before it was rounded, as llama.cpp's own quantiser does: the same file from the same weights.
    // A scale without an inverse is zero as a 16-bit float, and so are the values.
    const float inverse = std::isfinite(1 / scale) ? 1 / scale : 0;
    for (size_t i = first; i < first + kBlock; ++i) {
      const float quotient = std::clamp(std::round(values[i] * inverse), -127.0F, 127.0F);
      bytes += static_cast<char>(static_cast<int8_t>(quotient));
    }
  }
  return bytes;
}

}  // namespace thinpipe
