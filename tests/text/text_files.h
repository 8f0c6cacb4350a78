// What the tests of text/ share: small files, small English, the documents of a source.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/rng.h"
#include "support/draw.h"
#include "support/user_error.h"
#include "text/corpus.h"
#include "text/split.h"

namespace thinpipe::test {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// Lines of made-up English, a different one for every seed; enough of it for a tokenizer of a few hundred pieces.
inline std::string english(size_t lines, uint64_t seed) {
  static constexpr std::string_view kWords[] = {"the",   "river", "and",    "mountain", "walked", "slowly",
                                                "under", "a",     "bright", "morning",  "with",   "seven",
                                                "quiet", "birds", "which",  "nobody",   "ever",   "saw",
                                                "again", "until", "winter", "came",     "Three",  "Men"};
  const CounterRng rng(seed, "english");
  std::string text;
  uint64_t draw = 0;
  for (size_t line = 0; line < lines; ++line) {
    const uint64_t words = 4 + below(rng, 9, draw++);
    for (uint64_t word = 0; word < words; ++word) {
      if (word > 0) text += ' ';
      text += kWords[below(rng, std::size(kWords), draw++)];
    }
    text += fmt::format(", {}.\n", below(rng, 1000, draw++));
  }
  return text;
}

// The UTF-8 form of a code point, also of those UTF-8 has no place for.
inline std::string encoded(uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

// Words, whitespace, emoji, any scalar value but U+2581.
inline std::string random_piece(const CounterRng& rng, uint64_t& draw) {
  // clang-format off
  static constexpr std::string_view kOdd[] = {
      "\n", "\n\n", " ", "   ", "\t", "\r\n", "\r", "the ", "  mountain", ", 12.\n",    // what the model knows
      "<s>", "</s>", "<unk>", "<0x41>", "\u2585", "\u2047",                            // sentencepiece's own signs
      "e\u0301", "\u0E33\u0E49", "\uFDFA", "\U0001F600", "\U0001F468\u200D\U0001F469",  // made of several
      "\u00A0", "\u3000", "\u2028", "\u0085", "\u200D", "\u202E", "\uFEFF", "\x7F",      // not to be seen
      "\uFFFD", "\uFFFF", "\U0010FFFF", "\uFDD0", "\uE000"};                           // not characters
  // clang-format on
  const uint64_t kind = below(rng, 10, draw++);
  if (kind < 5) return std::string(kOdd[below(rng, std::size(kOdd), draw++)]);
  if (kind == 5) return std::string(1, '\0');
  const uint32_t bounds[] = {0x80, 0x800, 0x10000, 0x110000};
  while (true) {
    const auto code = static_cast<uint32_t>(below(rng, bounds[kind - 6], draw++));
    if (code != 0x2581 && !(code >= 0xD800 && code <= 0xDFFF)) return encoded(code);
  }
}

// Valid UTF-8 of up to forty such pieces, the same for the same number.
inline std::string random_text(uint64_t number) {
  const CounterRng rng(number, "random text");
  uint64_t draw = 0;
  std::string text;
  for (uint64_t pieces = below(rng, 40, draw++); pieces > 0; --pieces) text += random_piece(rng, draw);
  return text;
}

// Every document, or the error as the only one.
inline std::vector<std::string> documents(const Corpus& corpus, DocumentSizes sizes = {}) {
  std::vector<std::string> all;
  DocumentReader reader = corpus.read(sizes);
  std::string document;
  while (true) {
    auto more = reader.next(document);
    if (!more) return {"error: " + more.error().message};
    if (!more.value()) return all;
    all.push_back(document);
  }
}

// Which of n documents are validation, said independently of preparation.
inline std::vector<bool> validation_of(size_t n, double fraction) {
  DocumentSplit split(fraction);
  for (size_t i = 0; i < n; ++i) split.add();
  std::vector<bool> val(n);
  for (size_t i = 0; i < n; ++i) val[i] = split.is_val(i);
  return val;
}

}  // namespace thinpipe::test
