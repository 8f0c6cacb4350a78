#include "text/decoding.h"

#include <algorithm>
#include <cstddef>

#include "base/line.h"
#include "base/result.h"

namespace thinpipe {
namespace {

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
constexpr std::string_view kLittleMark = "\xFF\xFE";
constexpr std::string_view kBigMark = "\xFE\xFF";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kShownBytes = 4096;

uint8_t byte(char value) { return static_cast<uint8_t>(value); }

// Zero bytes at even and at odd places: the upper bytes of ASCII characters in big- and little-endian UTF-16.
struct Zeros {
  size_t even = 0;
  size_t odd = 0;
};

Zeros zeros_in(std::string_view text) {
  Zeros zeros;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\0') ++(i % 2 == 0 ? zeros.even : zeros.odd);
  }
  return zeros;
}

void append_utf8(uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xC0 | code >> 6), tail(0)};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  } else {
    out += {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
  }
}

struct Subpart {
  size_t length = 1;
  bool is_cut = false;  // the text ends before the character does
};

// The invalid sequence at the beginning of `text`: the longest beginning of a valid character, or one byte (Unicode,
// table 3-7).
Subpart invalid_subpart(std::string_view text) {
  const uint8_t first = byte(text[0]);
  const size_t wanted = first >= 0xF0 && first <= 0xF4 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 1;
  if (wanted == 1 || first > 0xF4) return {};
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  size_t length = 1;
  while (length < wanted && length < text.size() && byte(text[length]) >= low && byte(text[length]) <= high) {
    low = 0x80;
    high = 0xBF;
    ++length;
  }
  return {length, length == text.size() && length < wanted};
}

}  // namespace

Encoding shown_encoding(std::string_view beginning) {
  beginning = beginning.substr(0, kShownBytes);
  if (beginning.starts_with(kLittleMark) || beginning.starts_with(kBigMark)) return Encoding::kUtf16;
  const auto [even, odd] = zeros_in(beginning);
  const size_t many = std::max<size_t>(2, beginning.size() / 4);
  const bool one_side = std::min(even, odd) <= std::max(even, odd) / 8;
  return std::max(even, odd) >= many && one_side ? Encoding::kUtf16 : Encoding::kUtf8;
}

bool Decoder::bad(std::string_view left, std::string& out) {
  fault_at_ = given_bytes_ - left.size();
  ++invalid_count_;
  if (invalid_ == Invalid::kReplace) out += kReplacement;
  return invalid_ != Invalid::kRefuse;
}

bool Decoder::decode_utf8(std::string_view bytes, bool end, std::string& out) {
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const auto part = invalid_subpart(bytes);
    if (part.is_cut && !end) break;
    if (!bad(bytes, out)) return false;
    bytes.remove_prefix(part.length);
  }
  rest_ = bytes;
  return true;
}

bool Decoder::decode_utf16(std::string_view bytes, bool end, std::string& out) {
  const auto unit = [&](size_t at) {
    const uint32_t first = byte(bytes[at]), second = byte(bytes[at + 1]);
    return big_endian_ ? first << 8 | second : second << 8 | first;
  };
  while (bytes.size() >= 2) {
    const uint32_t code = unit(0);
    const bool is_high = code >= 0xD800 && code < 0xDC00, is_low = code >= 0xDC00 && code < 0xE000;
    if (is_high && bytes.size() < 4) break;
    if (is_high && unit(2) >= 0xDC00 && unit(2) < 0xE000) {
      append_utf8(0x10000 + ((code - 0xD800) << 10) + (unit(2) - 0xDC00), out);
      bytes.remove_prefix(4);
      continue;
    }
    if (!is_high && !is_low) {
      append_utf8(code, out);
    } else if (!bad(bytes, out)) {
      return false;
    }
    bytes.remove_prefix(2);
  }
  // Half a character at the end of the file is one fault.
  if (end && !bytes.empty()) return bad(bytes, out);
  rest_ = bytes;
  return true;
}

bool Decoder::decode(std::string_view bytes, bool end, std::string& out) {
  TP_CHECK(encoding_ != Encoding::kAuto, "the encoding of a file must be known before it is decoded");
  if (encoding_ == Encoding::kLatin1) {
    for (const char one : bytes) append_utf8(byte(one), out);
    return true;
  }
  given_bytes_ += bytes.size();
  const std::string joined = rest_.append(bytes);
  rest_.clear();
  std::string_view text = joined;
  if (!begun_) {
    if (text.size() < kShownBytes && !end) {
      rest_ = text;
      return true;
    }
    begun_ = true;
    if (encoding_ == Encoding::kUtf8) {
      if (text.starts_with(kUtf8Mark)) text.remove_prefix(kUtf8Mark.size());
    } else if (text.starts_with(kLittleMark) || text.starts_with(kBigMark)) {
      big_endian_ = text.starts_with(kBigMark);
      text.remove_prefix(2);
    } else {  // without a mark: by the zeros of its ASCII characters, else as Windows writes it
      const auto [even, odd] = zeros_in(text.substr(0, kShownBytes));
      big_endian_ = even > odd;
    }
  }
  if (encoding_ == Encoding::kUtf16) return decode_utf16(text, end, out);
  if (invalid_ != Invalid::kRefuse) return decode_utf8(text, end, out);
  out += text;
  return true;
}

}  // namespace thinpipe
