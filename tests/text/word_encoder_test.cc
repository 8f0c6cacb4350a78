// Word by word or at once: the same ids, for every text.
#include "text/word_encoder.h"

#include <gtest/gtest.h>

#include "support/draw.h"
#include "text/prepare_setting.h"

namespace thinpipe {
namespace {

std::vector<int32_t> by_words(WordEncoder& encoder, std::string_view text) {
  std::vector<int32_t> ids;
  encoder.append(text, ids);
  return ids;
}

TEST(WordEncoder, GivesTheIdsOfTheWholeText) {
  const auto tokenizer = Tokenizer::load(test::Setting().prepare().tokenizer).take();
  WordEncoder encoder(tokenizer);
  ASSERT_TRUE(encoder.by_words());
  std::vector<std::string> texts = test::sixty_documents();
  for (uint64_t i = 0; i < 1000; ++i) texts.push_back(test::random_text(i));
  for (const char* text : {"",
                           " ",
                           "  ",
                           "   ",
                           "a",
                           "a ",
                           "a  ",
                           " a",
                           "  a",
                           " a ",
                           "a b",
                           "a  b",
                           "a \n b",
                           "\n",
                           "\n ",
                           " \n",
                           "the river. \nAnd",
                           "\u2581",
                           "a\u2581b",
                           "a \u2581b ",
                           "a\u2581"}) {
    texts.emplace_back(text);
  }
  // Runs of spaces and words of all lengths.
  const CounterRng rng(1, "spaces");
  uint64_t draw = 0;
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (int part = 0; part < 30; ++part) {
      text += std::string(test::below(rng, 4, draw++), ' ');
      text += test::english(1, draw).substr(0, test::below(rng, 70, draw + 1));
      draw += 2;
    }
    texts.push_back(text);
  }
  for (int round = 0; round < 2; ++round) {  // the second time from memory
    for (const auto& text : texts) ASSERT_EQ(by_words(encoder, text), tokenizer.encode(text)) << '"' << text << '"';
  }
}

}  // namespace
}  // namespace thinpipe
