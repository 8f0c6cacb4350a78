#include "text/utf8.h"

#include <algorithm>
#include <cstdint>

#include "base/result.h"

namespace thinpipe {
namespace {

uint8_t byte_at(std::string_view text, size_t index) { return static_cast<uint8_t>(text[index]); }

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// The length of the well-formed character at the start of `text`; 0 if there is none.
size_t character_length(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!is_continuation(byte_at(text, i))) return 0;
  }
  // The second byte alone tells overlong forms, surrogates and what lies beyond U+10FFFF.
  const uint8_t second = byte_at(text, 1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return length;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const size_t length = character_length(text.substr(offset));
    if (length == 0) break;
    offset += length;
  }
  return offset;
}

size_t cut_limit(size_t target) {
  // Four bytes hold any character, so that even the smallest target makes progress without splitting one.
  return std::max<size_t>(2 * target, 4);
}

size_t cut_length(std::string_view text, size_t target) {
  TP_CHECK(!text.empty() && target > 0, "nothing to cut: {} bytes, target {}", text.size(), target);
  const size_t limit = cut_limit(target);
  const size_t line_end = text.substr(0, limit).find('\n', target - 1);
  if (line_end != std::string_view::npos) return line_end + 1;
  if (text.size() <= limit) return text.size();
  size_t cut = limit;
  while (limit - cut < 3 && is_continuation(byte_at(text, cut))) --cut;
  return is_continuation(byte_at(text, cut)) ? limit : cut;
}

}  // namespace thinpipe
