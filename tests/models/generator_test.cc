// Generation with a cache against a naive twin that reads the whole context anew for every token, and text that comes
// in whole characters.
#include "models/generator.h"

#include <gtest/gtest.h>

#include "models.h"
#include "support/draw.h"

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

TEST(Generator, ChoosesOnlyIdsThatHaveAPiece) {
  const auto config = small_dense();
  const auto stage = make_model(config);
  Generator all(*stage, config.model, 16);
  all.read(some_tokens(4));
  TokenPicker picker({.temperature = 0});
  const int32_t best = all.next(picker).value();
  ASSERT_GT(best, 0);
  Generator fewer(*stage, config.model, 16, best);
  fewer.read(some_tokens(4));
  for (int i = 0; i < 20; ++i) EXPECT_LT(fewer.next(picker).value(), best);
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

// A tokenizer like the small one, whose normaliser (field 3 of the model) is told something else: the last word counts.
Tokenizer small_tokenizer_with(const std::string& normalizer_field) {
  return Tokenizer::parse(small_tokenizer().model() + normalizer_field, "the test's other tokenizer").take();
}

// Whatever comes: pieces with and without a space, lone spaces, control tokens, bytes that make characters, parts of
// them or nothing.
std::vector<int32_t> random_ids(uint64_t stream) {
  const CounterRng rng(17, stream);
  const auto characters = small_tokenizer().encode("\u00e9\u6c34\U0001F30A");
  const auto spaces = small_tokenizer().encode("   ");
  std::vector<int32_t> ids;
  for (uint64_t i = 0; ids.size() < 60; i += 2) {
    switch (test::below(rng, 6, i)) {
      case 0:
        ids.push_back(static_cast<int32_t>(test::below(rng, kSmallVocab, i + 1)));
        break;
      case 1:
        ids.push_back(3 + static_cast<int32_t>(test::below(rng, 256, i + 1)));
        break;
      case 2:
        ids.push_back(259 + static_cast<int32_t>(test::below(rng, kSmallVocab - 259, i + 1)));
        break;
      case 3:
        ids.push_back(spaces[test::below(rng, spaces.size(), i + 1)]);
        break;
      default: {
        const auto first = test::below(rng, characters.size(), i + 1);
        const auto part =
            std::span(characters).subspan(first, std::min<size_t>(1 + first % 4, characters.size() - first));
        ids.insert(ids.end(), part.begin(), part.end());
      }
    }
  }
  return ids;
}

TEST(TextStream, TogetherItsPiecesAreTheTextOfAllTokens) {
  // As it is; without a space before the text; with repeated spaces removed.
  const std::vector<std::string> fields{"", {"\x1a\x02\x18\x00", 4}, {"\x1a\x02\x20\x01", 4}};
  for (const auto& field : fields) {
    const auto tokenizer = small_tokenizer_with(field);
    for (uint64_t stream = 0; stream < 300; ++stream) {
      std::vector<int32_t> all{tokenizer.bos()};
      if (stream % 3 == 1) all.push_back(tokenizer.eos());
      if (stream % 3 == 2) {
        const auto prompt = tokenizer.encode("the stream \u6c34");
        all.insert(all.end(), prompt.begin(), prompt.end());
      }
      std::string together = tokenizer.decode(all).value();
      TextStream text(tokenizer, all);
      for (const int32_t id : random_ids(stream)) {
        all.push_back(id);
        together += text.add(id);
      }
      ASSERT_EQ(together + text.finish(), tokenizer.decode(all).value()) << "stream " << stream;
    }
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
