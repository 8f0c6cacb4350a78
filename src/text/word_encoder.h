// The ids Tokenizer::encode gives, much faster: words come again and again, and what sentencepiece makes of a word is
// remembered. It takes most of its time to find the order of merges within a whole document, while no piece of an
// ordinary model reaches over the start of a word; so the words of a document can be encoded one by one.
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

  // Exactly tokenizer.encode(text), appended.
  void append(std::string_view text, std::vector<int32_t>& ids);

  // Whether the model is one whose words can be taken by themselves; if not, append() takes the text whole.
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
