// Strings that two tokenizers are likely to cut differently, if they differ at all.
#pragma once

#include <string>
#include <vector>

#include "base/rng.h"
#include "models/tiny_llama.h"
#include "support/draw.h"

namespace thinpipe::test {

// 200 strings of every kind: what text holds, where spaces can be, signs of several bytes, control tokens typed as
// text.
inline std::vector<std::string> odd_strings() {
  // clang-format off
  std::vector<std::string> texts{
      "", " ", "  ", "   ", "a", " a", "  a", "a ", "a  ", "a  b", "\n", "\n\n", "\n a", " \n ", "\t", "\ta\t b",
      "\r\n", "a\r\nb", "0", "1234567890", "3.14159", "1,000,000", "2024-05-20", "<s>", "</s>", "<unk>", " <s>",
      "a<s>b", "<s></s>", "<0x41>", "<0x0A>", "\u2581", "a\u2581b", "\u2581\u2581", "\u2585", "\u2047", "\u00e9",
      "e\u0301", "\u00df", "\u4e2d\u6587", "\u0e33\u0e49", "\ufdfa", "\U0001f600",
      "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200d", "\u202e",
      "\ufeff", "\x7f", "\x01", std::string(1, '\0'), "\ufffd", "\U0010ffff", "\ue000", "The", " The", "The ", "THE",
      "the banana", "ba-ren;to", "\"quoted\"", "'", "\\", "{\"a\": [1, 2]}", "#include <x>",
      "int main() {\n    return 0;\n}\n", "a.b.c...", "!?!?", "http://x.y/z?a=b&c=d", "[PAD3]", "<|im_start|>",
      std::string(300, 'a'), std::string(300, ' '), std::string(50, '\n'), "qu\u00e9 qu\u00e9", "\u00df\u00df\u00df"};
  // clang-format on
  const CounterRng rng(5, "odd strings");
  const size_t listed = texts.size();
  for (uint64_t draw = 0; texts.size() < 200;) {
    const std::string words = made_up_text(40 + below(rng, 200, draw++), 100 + texts.size());
    std::string text = words.substr(0, words.find_last_of(" \n") + below(rng, 2, draw++));
    for (uint64_t more = below(rng, 4, draw++); more > 0; --more) text += texts[below(rng, listed, draw++)];
    texts.push_back(text + (below(rng, 2, draw++) == 0 ? words.substr(0, words.find(' ')) : ""));
  }
  return texts;
}

}  // namespace thinpipe::test
