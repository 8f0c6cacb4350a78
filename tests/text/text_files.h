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
#include "text/corpus.h"
#include "text/document_split.h"

namespace thinpipe::test {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// The message of the UserError that `action` throws; "(nothing thrown)" if it does not.
template <class Action>
std::string user_error(Action&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "(nothing thrown)";
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
    const uint64_t words = 4 + rng.below(9, draw++);
    for (uint64_t word = 0; word < words; ++word) {
      if (word > 0) text += ' ';
      text += kWords[rng.below(std::size(kWords), draw++)];
    }
    text += fmt::format(", {}.\n", rng.below(1000, draw++));
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
