// The same ids as Tokenizer::encode, much faster. sentencepiece spends most of its time on the order of merges within a
// whole document, but in an ordinary model no piece crosses the start of a word. So a document is encoded word by word,
// and the ids of frequent words are cached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace thinpipe {

// One thread at a time; the tokenizer must outlive it.
class WordEncoder {
 public:
  explicit WordEncoder(const Tokenizer& tokenizer);

  // Appends exactly tokenizer.encode(text).
  void append(std::string_view text, std::vector<int32_t>& ids);

  // Whether the words of this model can be encoded one by one; if not, append() encodes the text as a whole.
  bool by_words() const { return by_words_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  void append_word(std::string_view word, std::vector<int32_t>& ids);

  const Tokenizer& tokenizer_;
  bool by_words_;
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> known_;
};

}  // namespace thinpipe
