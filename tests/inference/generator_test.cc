// Generation with a cache against a naive twin that reads the whole context anew for every token, and text that comes
// in whole characters.
#include "inference/generator.h"

#include <gtest/gtest.h>

#include "models.h"

namespace thinpipe {
namespace {

// The likeliest token after `tokens`, without a cache: the one that makes the whole sequence's loss smallest.
int32_t naive_next(const Stage& stage, std::vector<int32_t> tokens) {
  int32_t best = 0;
  double best_nats = 1e300;
  tokens.push_back(0);
  for (int32_t next = 0; next < kSmallVocab; ++next) {
    tokens.back() = next;
    const double nats = stage.evaluate(batch_of(tokens), {}).loss_sum;
    if (nats < best_nats) {
      best_nats = nats;
      best = next;
    }
  }
  return best;
}

TEST(Generator, ChoosesWhatTheWholeModelWouldChoose) {
  for (const auto& config : {small_dense(), small_subspace()}) {
    const auto stage = make_model(config);
    Generator generator(*stage, config.model, 16);
    auto tokens = some_tokens(4);
    generator.read(tokens);
    TokenPicker picker({.temperature = 0});
    for (int i = 0; i < 8; ++i) {
      const int32_t next = generator.next(picker).value();
      EXPECT_EQ(next, naive_next(*stage, tokens));
      tokens.push_back(next);
    }
    EXPECT_EQ(generator.tokens(), tokens);
  }
}

TEST(Generator, AFullContextKeepsTheBeginningAndTheNewestHalf) {
  const auto config = small_dense();
  const auto stage = make_model(config);
  Generator generator(*stage, config.model, 8);
  const auto prompt = some_tokens(8);
  generator.read(prompt);
  TokenPicker picker({.temperature = 0});
  const int32_t first = generator.next(picker).value();
  const std::vector<int32_t> kept{prompt[0], prompt[5], prompt[6], prompt[7], first};
  EXPECT_EQ(generator.tokens(), kept);
  EXPECT_EQ(generator.next(picker).value(), naive_next(*stage, kept));
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(generator.next(picker));
  EXPECT_LE(generator.tokens().size(), 8u);
}

TEST(Generator, APromptLongerThanTheContextIsReadInParts) {
  const auto config = small_dense();
  const auto stage = make_model(config);
  Generator generator(*stage, config.model, 8);
  generator.read(some_tokens(50));
  const auto context = generator.tokens();
  EXPECT_EQ(context.front(), 1);
  EXPECT_EQ(context.back(), some_tokens(50).back());
  TokenPicker picker({.temperature = 0});
  EXPECT_EQ(generator.next(picker).value(), naive_next(*stage, context));
}

TEST(Generator, ForgetsWhenReset) {
  const auto config = small_dense();
  const auto stage = make_model(config);
  Generator generator(*stage, config.model, 16);
  generator.read(some_tokens(9, 2));
  generator.reset();
  EXPECT_TRUE(generator.tokens().empty());
  generator.read(some_tokens(4));
  TokenPicker picker({.temperature = 0});
  EXPECT_EQ(generator.next(picker).value(), naive_next(*stage, some_tokens(4)));
}

TEST(TextStream, GivesTheTextInPiecesThatAreWholeCharacters) {
  const auto tokenizer = small_tokenizer();
  for (const std::string text : {"the stream flows", "é è 水 🌊 a", "line\n\n  two", "🌊"}) {
    const std::vector<int32_t> begin{tokenizer.bos()};
    TextStream stream(tokenizer, begin);
    std::string together;
    for (const int32_t id : tokenizer.encode(text)) {
      const auto piece = stream.add(id);
      EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos) << text;
      together += piece;
    }
    EXPECT_EQ(together + stream.finish(), text);
  }
}

TEST(TextStream, WhatStandsBeforeIsNotGivenAndKeepsItsSpace) {
  const auto tokenizer = small_tokenizer();
  auto ids = tokenizer.encode("the stream flows in a bed");
  ids.insert(ids.begin(), tokenizer.bos());
  for (size_t cut = 1; cut < ids.size(); ++cut) {
    TextStream stream(tokenizer, std::span(ids).first(cut));
    std::string text = tokenizer.decode(std::span(ids).first(cut)).value();
    for (size_t i = cut; i < ids.size(); ++i) text += stream.add(ids[i]);
    EXPECT_EQ(text + stream.finish(), "the stream flows in a bed");
  }
}

TEST(TextStream, BytesThatNeverBecomeACharacterComeAtTheEnd) {
  const auto tokenizer = small_tokenizer();
  const std::vector<int32_t> begin{tokenizer.bos()};
  TextStream stream(tokenizer, begin);
  const auto wave = tokenizer.encode("🌊");
  std::string text;
  for (size_t i = 0; i + 1 < wave.size(); ++i) text += stream.add(wave[i]);
  EXPECT_EQ(text, "");
  EXPECT_NE(stream.finish().find("\xEF\xBF\xBD"), std::string::npos);
}

}  // namespace
}  // namespace thinpipe
