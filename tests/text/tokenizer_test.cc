// Text through the tokenizer and back, bit by bit; what training refuses; files that are no model.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "support/scratch.h"
#include "text/text_files.h"
#include "text/tokenizer_training.h"
#include "text/utf8.h"

namespace thinpipe {
namespace {

using test::encoded;
using test::english;
using test::user_error;

// One document after another, then the end.
DocumentSource source_of(std::vector<std::string> parts) {
  return [parts = std::move(parts), next = size_t{0}](std::string& document) mutable -> Result<bool> {
    if (next == parts.size()) return false;
    document = parts[next++];
    return true;
  };
}

std::string train(const std::vector<std::string>& parts, int64_t vocab) {
  uint64_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return train_tokenizer(source_of(parts), bytes, vocab).take();
}

const std::string& small_model() {
  static const std::string model = train({english(300, 1), english(300, 2)}, 400);
  return model;
}

const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::parse(small_model(), "small.model").take();
  return tokenizer;
}

void expect_round_trip(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text);
  for (const int32_t id : ids) {
    ASSERT_TRUE(id > 2 && id < tokenizer.vocab()) << "a control token or none at all: " << id;
  }
  EXPECT_EQ(tokenizer.decode(ids).take(), text);
  // As a document is stored.
  std::vector<int32_t> document = {tokenizer.bos()};
  document.insert(document.end(), ids.begin(), ids.end());
  EXPECT_EQ(tokenizer.decode(document).take(), text);
}

// A piece of text of some kind or other: words, whitespace, emoji, any scalar value but U+2581.
std::string random_piece(const CounterRng& rng, uint64_t& draw) {
  // clang-format off
  static constexpr std::string_view kOdd[] = {
      "\n", "\n\n", " ", "   ", "\t", "\r\n", "\r", "the ", "  mountain", ", 12.\n",    // what the model knows
      "<s>", "</s>", "<unk>", "<0x41>", "\u2585", "\u2047",                            // sentencepiece's own signs
      "e\u0301", "\u0E33\u0E49", "\uFDFA", "\U0001F600", "\U0001F468\u200D\U0001F469",  // made of several
      "\u00A0", "\u3000", "\u2028", "\u0085", "\u200D", "\u202E", "\uFEFF", "\x7F",      // not to be seen
      "\uFFFD", "\uFFFF", "\U0010FFFF", "\uFDD0", "\uE000"};                           // not characters
  // clang-format on
  const uint64_t kind = rng.below(10, draw++);
  if (kind < 5) return std::string(kOdd[rng.below(std::size(kOdd), draw++)]);
  if (kind == 5) return std::string(1, '\0');
  const uint32_t bounds[] = {0x80, 0x800, 0x10000, 0x110000};
  while (true) {
    const auto code = static_cast<uint32_t>(rng.below(bounds[kind - 6], draw++));
    if (code != 0x2581 && !(code >= 0xD800 && code <= 0xDFFF)) return encoded(code);
  }
}

TEST(Tokenizer, GivesBackAThousandRandomStrings) {
  const CounterRng rng(20240520, "round trip");
  uint64_t draw = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    const uint64_t pieces = rng.below(40, draw++);
    for (uint64_t piece = 0; piece < pieces; ++piece) text += random_piece(rng, draw);
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    expect_round_trip(small_tokenizer(), text);
    if (HasFailure()) FAIL() << "string " << i;
  }
}

TEST(Tokenizer, GivesBackEveryPlaceASpaceCanBe) {
  for (const std::string text : {"", " ", "  ", "a", " a", "  a", "a ", "a  b", "\n", "\n a", " \n ", "a \n\n  b\n"}) {
    expect_round_trip(small_tokenizer(), text);
  }
}

TEST(Tokenizer, ReadsTheMetaspaceBackAsASpaceAndNothingElse) {
  const auto& tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\u2581b \u2581")).take(), "a b  ");
  EXPECT_EQ(tokenizer.encode("a\u2581b"), tokenizer.encode("a b"));
}

TEST(Tokenizer, NumbersItsControlTokensAsLlamaDoes) {
  const auto& tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocab(), 400);
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 2}).take(), "");
}

TEST(Tokenizer, DecodesBytesThatMakeNoCharacter) {
  // Byte tokens follow the three control tokens: 0xC3 alone is no character.
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{3 + 0xC3}).take(), "\uFFFD");
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{3 + 0xC3, 3 + 0xA9}).take(), "\u00E9");
}

TEST(Tokenizer, RefusesAnIdBeyondItsVocabulary) {
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{5, 6, 400}).error().message,
            "token 400 at position 2 is not in the vocabulary of 400");
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{-1}).error().message,
            "token -1 at position 0 is not in the vocabulary of 400");
}

TEST(Tokenizer, RefusesFilesThatAreNoModel) {
  const test::ScratchFolder folder;
  EXPECT_EQ(Tokenizer::load(folder / "no.model").error().message,
            "cannot read " + (folder / "no.model").string() + ": No such file or directory");
  EXPECT_FALSE(Tokenizer::load(folder.path()).ok());
  test::write_file(folder / "x.model", "In the beginning was the word.\n");
  EXPECT_EQ(
      Tokenizer::load(folder / "x.model").error().message,
      (folder / "x.model").string() +
          ": not a complete sentencepiece model: needs a whole .model file, as `thinpipe tokenizer train` writes one");
  EXPECT_FALSE(Tokenizer::parse("", "x").ok());
}

TEST(Tokenizer, LoadsWhatWasSaved) {
  const test::ScratchFolder folder;
  test::write_file(folder / "x.model", small_model());
  const auto loaded = Tokenizer::load(folder / "x.model").take();
  EXPECT_EQ(loaded.model(), small_model());
  EXPECT_EQ(loaded.encode("the river"), small_tokenizer().encode("the river"));
}

TEST(Tokenizer, SurvivesCutAndFlippedModels) {
  const std::string& good = small_model();
  const auto try_out = [](const std::string& model) {
    const auto tokenizer = Tokenizer::parse(model, "x");
    if (!tokenizer) return false;
    try {
      const auto ids = tokenizer.value().encode("the river \U0001F600 <s>\n");
      for (const int32_t id : ids) EXPECT_TRUE(id >= 0 && id < tokenizer.value().vocab());
      (void)tokenizer.value().decode(ids);
    } catch (const UserError&) {
    }
    return true;
  };
  size_t accepted = 0;
  for (size_t length = 0; length < good.size(); length += 13) accepted += try_out(good.substr(0, length));
  // Only what comes after the normaliser can be missed: the empty specification at the very end.
  EXPECT_LE(accepted, 1U);
  const CounterRng rng(3, "flips");
  for (uint64_t i = 0; i < 200; ++i) {
    std::string changed = good;
    changed[rng.below(good.size(), 2 * i)] ^= static_cast<char>(1 << rng.below(8, 2 * i + 1));
    try_out(changed);
  }
}

TEST(TokenizerTraining, IsDeterministic) {
  EXPECT_EQ(train({english(300, 1), english(300, 2)}, 400), small_model());
  EXPECT_NE(train({english(300, 1), english(300, 3)}, 400), small_model());
}

TEST(TokenizerTraining, LearnsWhatComesAroundALineEnd) {
  // Every line ends ".\n"; one token for both shows that lines were not trained on one by one.
  const auto ids = small_tokenizer().encode("x.\n");
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{ids.back()}).take(), ".\n");
}

TEST(TokenizerTraining, NamesTheVocabularyThatWouldFit) {
  EXPECT_EQ(user_error([] { train({english(20, 1)}, 30000); }),
            "data.vocab = 30000 is more than the training text can fill; it has pieces for at most 506");
  EXPECT_EQ(train({english(20, 1)}, 506).empty(), false);
  EXPECT_EQ(user_error([] { train({english(20, 1)}, 260); }),
            "data.vocab = 260 is too small: the characters of this corpus, 256 bytes and 3 control tokens need 296");
  EXPECT_EQ(train({english(20, 1)}, 296).empty(), false);
}

TEST(TokenizerTraining, RefusesTextItCanLearnNothingFrom) {
  for (const std::string text : {"", "\t\t\t", "\u2585", "\u2581", " ", "a"}) {
    EXPECT_TRUE(user_error([&] { train({text}, 300); }).find("data.vocab = 300") != std::string::npos) << text;
  }
  EXPECT_TRUE(user_error([&] { train({std::string(5, '\0')}, 300); }).find("data.vocab = 300") != std::string::npos);
}

TEST(TokenizerTraining, PassesOnAnErrorOfTheSource) {
  bool first = true;
  const DocumentSource broken = [&](std::string& document) -> Result<bool> {
    if (!std::exchange(first, false)) return Error{"a.txt: line 7: broken"};
    document = english(100, 1);
    return true;
  };
  EXPECT_EQ(train_tokenizer(broken, 10'000, 300).error().message, "a.txt: line 7: broken");
}

TEST(TokenizerTraining, SamplesALargeCorpusEvenly) {
  // As if the corpus had 64 MiB: a quarter of the chunks is taken, from the start and from the end. Each tenth of the
  // documents has a word of its own that is learned only if one of its chunks was.
  std::vector<std::string> parts;
  for (int tenth = 0; tenth < 10; ++tenth) {
    std::string text;
    const std::string word(4, static_cast<char>('A' + tenth));
    while (text.size() < 60'000) text += word + " the river and the mountain\n";
    parts.push_back(text);
  }
  const auto tokenizer = Tokenizer::parse(train_tokenizer(source_of(parts), 64 << 20, 360).take(), "sampled").take();
  for (int tenth = 0; tenth < 10; ++tenth) {
    const std::string word(4, static_cast<char>('A' + tenth));
    EXPECT_EQ(tokenizer.encode("the " + word).size(), 2U) << word;
  }
}

}  // namespace
}  // namespace thinpipe
