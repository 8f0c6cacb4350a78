#include "text/tokenizer_check.h"

#include <gtest/gtest.h>

#include <set>

#include "text/prepare_setting.h"
#include "text/tokenizer_training.h"
#include "text/utf8.h"

namespace thinpipe {
namespace {

TEST(TokenizerCheck, RandomTextsAreValidVariedAndTheSameEveryTime) {
  std::set<std::string> seen;
  for (uint64_t i = 0; i < 1000; ++i) {
    const auto text = random_text(i);
    EXPECT_EQ(valid_utf8_prefix(text), text.size()) << i;
    EXPECT_EQ(text, random_text(i));
    seen.insert(text);
  }
  EXPECT_GT(seen.size(), 970U);
  EXPECT_EQ(seen.count(""), 1U);
}

TEST(TokenizerCheck, ATokenizerTrainedHereGivesEveryTextBack) {
  const auto tokenizer = Tokenizer::load(test::Setting().prepare().tokenizer).take();
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_TRUE(check_round_trip(tokenizer, random_text(i), "it").ok()) << i;
  EXPECT_TRUE(check_round_trip(tokenizer, "the one exception: \u2581", "it").ok());
}

// A model that, unlike ours, puts characters into one form and drops spaces.
TEST(TokenizerCheck, NamesTheFirstDifference) {
  class Lines final : public ChunkSource {
   public:
    const std::string* next() override {
      if (given_++ > 0) return nullptr;
      return &text_;
    }

   private:
    std::string text_ = test::english(8, 1);
    int given_ = 0;
  } lines;
  std::string model;
  ASSERT_EQ(sentencepiece_api().train({{"model_type", "bpe"},
                                       {"vocab_size", "300"},
                                       {"hard_vocab_limit", "true"},
                                       {"normalization_rule_name", "nmt_nfkc"},
                                       {"remove_extra_whitespaces", "true"},
                                       {"byte_fallback", "true"},
                                       {"max_sentence_length", "100000"},
                                       {"minloglevel", "3"}},
                                      lines, &model),
            "");
  const auto tokenizer = Tokenizer::parse(model, "other.model").take();
  EXPECT_TRUE(check_round_trip(tokenizer, "the river", "a.txt").ok());
  EXPECT_EQ(check_round_trip(tokenizer, "the  river\n", "a.txt").error().message,
            "a.txt: does not come back: at byte 4 there is ' river\\x0a', and 'river' came back");
  EXPECT_EQ(check_round_trip(tokenizer, "the river ", "a.txt").error().message,
            "a.txt: does not come back: at byte 9 there is ' ', and the end came back");
}

}  // namespace
}  // namespace thinpipe
