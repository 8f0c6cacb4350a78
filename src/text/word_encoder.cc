#include "text/word_encoder.h"

namespace thinpipe {
namespace {

constexpr std::string_view kSpaceSign = "\u2581";  // U+2581, sentencepiece's sign for a space
constexpr size_t kMaxKnownWords = 1 << 15;         // about 5 MB in total
constexpr size_t kMaxKnownBytes = 48;              // longer words are rarely repeated

// Whether a space sign follows something else in the piece, which then crosses the start of a word.
bool crosses_a_word(std::string_view piece) {
  const size_t first_other = [&] {
    size_t at = 0;
    while (piece.substr(at).starts_with(kSpaceSign)) at += kSpaceSign.size();
    return at;
  }();
  return piece.find(kSpaceSign, first_other) != std::string_view::npos;
}

// If text is not normalised, a space is added in front, nothing is unknown and no piece crosses the start of a word,
// then the merges on both sides of that start do not depend on each other.
bool can_split(const Tokenizer& tokenizer) {
  const auto& facts = tokenizer.facts();
  if (!facts.bpe || !facts.byte_fallback || !facts.add_dummy_prefix || !facts.escape_whitespaces) return false;
  if (facts.remove_extra_whitespaces || facts.whitespace_as_suffix || facts.has_normalizer_rules) return false;
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab()); ++id) {
    const auto& piece = tokenizer.piece(id);
    // sentencepiece finds user-defined pieces before all merges and splits unused ones after them.
    if (piece.type == PieceType::kUserDefined || piece.type == PieceType::kUnused) return false;
    if (piece.type == PieceType::kNormal && crosses_a_word(piece.text)) return false;
  }
  return true;
}

}  // namespace

WordEncoder::WordEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), by_words_(can_split(tokenizer)) {}

void WordEncoder::append(std::string_view text, std::vector<int32_t>& ids) {
  // The sign itself in the text would act as a space that the loop below does not see.
  if (!by_words_ || text.find(kSpaceSign) != std::string_view::npos) {
    const auto all = tokenizer_.encode(text);
    ids.insert(ids.end(), all.begin(), all.end());
    return;
  }
  // `text` always follows a space: at first the one that the model puts in front.
  while (true) {
    size_t end = text.find(' ', text.find_first_not_of(' '));
    // A single space at the end does not start a word: encoding an empty text would lose it.
    if (end + 1 == text.size()) end = std::string_view::npos;
    append_word(text.substr(0, end), ids);
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

void WordEncoder::append_word(std::string_view word, std::vector<int32_t>& ids) {
  const auto known = known_.find(word);
  if (known != known_.end()) {
    ids.insert(ids.end(), known->second.begin(), known->second.end());
    return;
  }
  auto made = tokenizer_.encode(word);
  ids.insert(ids.end(), made.begin(), made.end());
  if (word.size() <= kMaxKnownBytes && known_.size() < kMaxKnownWords) known_.emplace(word, std::move(made));
}

}  // namespace thinpipe
