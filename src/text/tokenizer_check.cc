#include "text/tokenizer_check.h"

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "text/utf8.h"

namespace thinpipe {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

// `text` with every U+2581 as a space.
std::string without_space_signs(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const bool sign = text.substr(at).starts_with(kSpaceMark);
    plain += sign ? ' ' : text[at];
    at += sign ? kSpaceMark.size() : 1;
  }
  return plain;
}

// A few characters from there on, fit for one line.
std::string excerpt(std::string_view text, size_t at) {
  constexpr size_t kBytes = 12;
  std::string shown;
  for (const char character : text.substr(std::min(at, text.size()), kBytes)) {
    const auto byte = static_cast<unsigned char>(character);
    shown += byte >= 0x20 && byte < 0x7f ? std::string(1, character) : fmt::format("\\x{:02x}", byte);
  }
  return at >= text.size() ? "the end" : "'" + shown + "'";
}

void append_utf8(std::string& text, uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0 | code >> 6), tail(0)};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  } else {
    text += {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
  }
}

struct Range {
  uint32_t first;
  uint32_t last;
};
constexpr Range kRanges[] = {{'a', 'z'},       {' ', ' '},         {0, 0x1f},          {0x20, 0x7e},
                             {0xa0, 0x24f},    {0x300, 0x36f},     {0x370, 0x5ff},     {0x2000, 0x206f},
                             {0x3040, 0x9fff}, {0x1f300, 0x1faff}, {0xfe00, 0xfe0f},   {0xe000, 0xf8ff},
                             {0x80, 0xd7ff},   {0xe000, 0xffff},   {0x10000, 0x10ffff}};

}  // namespace

Status check_round_trip(const Tokenizer& tokenizer, std::string_view text, const std::string& name) {
  const auto decoded = tokenizer.decode(tokenizer.encode(text));
  if (!decoded) return decoded.error();
  if (decoded.value() == text) return {};
  const std::string expected = without_space_signs(text);
  const std::string got = without_space_signs(decoded.value());
  const auto [left, right] = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (left == expected.end() && right == got.end()) return {};
  const auto at = static_cast<size_t>(left - expected.begin());
  return Error{fmt::format("{}: does not come back: at byte {} there is {}, and {} came back", name, at,
                           excerpt(expected, at), excerpt(got, at))};
}

std::string random_text(uint64_t number) {
  const CounterRng rng(number, "random text");
  std::string text;
  uint64_t draw = 0;
  const uint64_t characters = rng.below(101, draw++);
  for (uint64_t i = 0; i < characters; ++i) {
    const Range range = kRanges[rng.below(std::size(kRanges), draw++)];
    append_utf8(text, range.first + static_cast<uint32_t>(rng.below(range.last - range.first + 1, draw++)));
  }
  return text;
}

}  // namespace thinpipe
