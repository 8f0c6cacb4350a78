// Round trips of text through the tokenizer; what training refuses; the contents of a .model, and files that are not
// models.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <map>

#include "base/line.h"
#include "support/draw.h"
#include "support/scratch.h"
#include "text/other_tokenizers.h"
#include "text/text_files.h"
#include "text/tokenizer_training.h"

namespace thinpipe {
namespace {

using test::english;
using test::user_error;

// A source that gives these documents and then ends.
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
    ASSERT_TRUE(id > 2 && id < tokenizer.vocab()) << "not an ordinary token: " << id;
  }
  EXPECT_EQ(tokenizer.decode(ids).take(), text);
  // As documents are stored.
  std::vector<int32_t> document = {tokenizer.bos()};
  document.insert(document.end(), ids.begin(), ids.end());
  EXPECT_EQ(tokenizer.decode(document).take(), text);
}

TEST(Tokenizer, RoundTripsAThousandRandomStrings) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const std::string text = test::random_text(i);
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    expect_round_trip(small_tokenizer(), text);
    if (HasFailure()) FAIL() << "string " << i;
  }
}

TEST(Tokenizer, RoundTripsSpacesInEveryPlace) {
  for (const std::string text : {"", " ", "  ", "a", " a", "  a", "a ", "a  b", "\n", "\n a", " \n ", "a \n\n  b\n"}) {
    expect_round_trip(small_tokenizer(), text);
  }
}

TEST(Tokenizer, ReadsOnlyTheMetaspaceBackAsASpace) {
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

TEST(Tokenizer, DecodesInvalidBytesToTheReplacementCharacter) {
  // Byte tokens follow the three control tokens: 0xC3 alone is not a character.
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{3 + 0xC3}).take(), "\uFFFD");
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{3 + 0xC3, 3 + 0xA9}).take(), "\u00E9");
}

TEST(Tokenizer, RefusesAnIdBeyondItsVocabulary) {
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{5, 6, 400}).error().message,
            "token 400 at position 2 is not in the vocabulary of 400");
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{-1}).error().message,
            "token -1 at position 0 is not in the vocabulary of 400");
}

TEST(Tokenizer, RefusesFilesThatAreNotModels) {
  const test::ScratchFolder folder;
  EXPECT_EQ(Tokenizer::load(folder / "no.model").error().message,
            "cannot read " + (folder / "no.model").string() + ": No such file or directory");
  EXPECT_FALSE(Tokenizer::load(folder.path()).ok());
  test::write_file(folder / "x.model", "In the beginning was the word.\n");
  EXPECT_EQ(Tokenizer::load(folder / "x.model").error().message,
            (folder / "x.model").string() +
                ": not a complete sentencepiece model: needs a .model file, as written by `thinpipe tokenizer train`");
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
  // Only a cut after the normaliser can go unnoticed: the empty specification at the very end.
  EXPECT_LE(accepted, 1U);
  const CounterRng rng(3, "flips");
  for (uint64_t i = 0; i < 200; ++i) {
    std::string changed = good;
    changed[test::below(rng, good.size(), 2 * i)] ^= static_cast<char>(1 << test::below(rng, 8, 2 * i + 1));
    try_out(changed);
  }
}

TEST(TokenizerTraining, IsDeterministic) {
  EXPECT_EQ(train({english(300, 1), english(300, 2)}, 400), small_model());
  EXPECT_NE(train({english(300, 1), english(300, 3)}, 400), small_model());
}

TEST(TokenizerTraining, LearnsPiecesAroundLineEnds) {
  // Every line ends ".\n"; one token for both shows that training did not go line by line.
  const auto ids = small_tokenizer().encode("x.\n");
  EXPECT_EQ(small_tokenizer().decode(std::vector<int32_t>{ids.back()}).take(), ".\n");
}

TEST(TokenizerTraining, NamesTheVocabularyThatWouldFit) {
  EXPECT_EQ(user_error([] { train({english(20, 1)}, 30000); }),
            "data.vocab = 30000 is too large: the training text has at most 506 pieces");
  EXPECT_EQ(train({english(20, 1)}, 506).empty(), false);
  EXPECT_EQ(user_error([] { train({english(20, 1)}, 260); }),
            "data.vocab = 260 is too small: this corpus needs at least 296, for 37 characters, 256 bytes and 3 control "
            "tokens");
  EXPECT_EQ(train({english(20, 1)}, 296).empty(), false);
}

TEST(TokenizerTraining, RefusesTextItCanLearnNothingFrom) {
  for (const std::string text : {"", "\t\t\t", "\u2585", "\u2581", " ", "a"}) {
    EXPECT_TRUE(user_error([&] { train({text}, 300); }).find("data.vocab = 300") != std::string::npos) << text;
  }
  EXPECT_TRUE(user_error([&] { train({std::string(5, '\0')}, 300); }).find("data.vocab = 300") != std::string::npos);
}

TEST(TokenizerTraining, ReturnsTheErrorOfTheSource) {
  bool first = true;
  const DocumentSource broken = [&](std::string& document) -> Result<bool> {
    if (!std::exchange(first, false)) return Error{"a.txt: line 7: broken"};
    document = english(100, 1);
    return true;
  };
  EXPECT_EQ(train_tokenizer(broken, 10'000, 300).error().message, "a.txt: line 7: broken");
}

TEST(TokenizerTraining, SamplesALargeCorpusEvenly) {
  // As if the corpus had 64 MiB: a quarter of the chunks is taken, from the start to the end. Each tenth of the
  // documents has a special word that is learned only if one of its chunks was taken.
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

using Options = std::map<std::string, std::string>;

ModelProto trained(const Options& options) {
  return parse_model_proto(test::train_with(options, english(60, 1))).take();
}

TEST(ModelProto, DescribesOurOwnTokenizers) {
  const auto& facts = small_tokenizer().facts();
  EXPECT_TRUE(facts.bpe);
  EXPECT_TRUE(facts.byte_fallback);
  EXPECT_FALSE(facts.whitespace_as_suffix);
  EXPECT_TRUE(facts.add_dummy_prefix);
  EXPECT_FALSE(facts.remove_extra_whitespaces);
  EXPECT_TRUE(facts.escape_whitespaces);
  EXPECT_EQ(facts.normalizer, "identity");
  EXPECT_FALSE(facts.has_normalizer_rules);
  EXPECT_FALSE(facts.has_denormalizer_rules);
  EXPECT_EQ(facts.unknown, 0);
}

TEST(ModelProto, HasTheSamePiecesAsSentencepiece) {
  const auto& tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.piece(0).type, PieceType::kUnknown);
  EXPECT_EQ(tokenizer.piece(1).type, PieceType::kControl);
  EXPECT_EQ(tokenizer.piece(1).text, "<s>");
  EXPECT_EQ(tokenizer.piece(2).text, "</s>");
  for (int32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(tokenizer.piece(3 + byte).text, fmt::format("<0x{:02X}>", byte));
    EXPECT_EQ(tokenizer.piece(3 + byte).type, PieceType::kByte);
  }
  for (int32_t id = 259; id < 400; ++id) {
    const Piece& piece = tokenizer.piece(id);
    EXPECT_EQ(piece.type, PieceType::kNormal);
    // BPE numbers its scores downwards from 0, in the order in which pieces were found.
    EXPECT_EQ(piece.score, static_cast<float>(259 - id));
    if (!piece.text.starts_with("\u2581")) {
      EXPECT_EQ(tokenizer.decode(std::vector{id}).take(), piece.text);
    }
  }
}

TEST(ModelProto, DistinguishesOtherTokenizers) {
  const auto unigram = trained({{"model_type", "unigram"}, {"vocab_size", "80"}}).facts;
  EXPECT_FALSE(unigram.bpe);
  EXPECT_FALSE(unigram.byte_fallback);
  EXPECT_EQ(unigram.normalizer, "nmt_nfkc");
  EXPECT_TRUE(unigram.has_normalizer_rules);
  EXPECT_TRUE(unigram.remove_extra_whitespaces);

  const Options bpe{{"model_type", "bpe"}, {"vocab_size", "80"}, {"normalization_rule_name", "identity"}};
  const auto with = [&](const std::string& option, const std::string& value) {
    Options options = bpe;
    options.emplace(option, value);
    return trained(options);
  };
  EXPECT_TRUE(trained(bpe).facts.bpe);
  EXPECT_FALSE(trained(bpe).facts.whitespace_as_suffix);
  EXPECT_TRUE(with("treat_whitespace_as_suffix", "true").facts.whitespace_as_suffix);
  EXPECT_TRUE(trained(bpe).facts.add_dummy_prefix);
  EXPECT_FALSE(with("add_dummy_prefix", "false").facts.add_dummy_prefix);
  const Options later{{"model_type", "bpe"}, {"vocab_size", "80"}, {"pad_id", "0"}, {"unk_id", "3"}};
  EXPECT_EQ(trained(later).facts.unknown, 3);

  const auto pieces = with("user_defined_symbols", "<sep>").pieces;
  EXPECT_EQ(pieces.at(3).text, "<sep>");
  EXPECT_EQ(pieces.at(3).type, PieceType::kUserDefined);
}

// One field of protobuf's wire format, lengths below 128.
std::string field(int number, std::string_view bytes) {
  std::string text;
  text += static_cast<char>(number << 3 | 2);
  text += static_cast<char>(bytes.size());
  return text + std::string(bytes);
}

std::string refusal(std::string_view model) { return parse_model_proto(model).error().message; }

TEST(ModelProto, RefusesBytesThatAreNotAMessage) {
  using namespace std::string_view_literals;
  for (const auto broken :
       {"\x80"sv, "\x08"sv,
        "\x0A\x04"
        "abc"sv,
        "\x0D\x01\x02\x03"sv, "\x09\x01"sv, "\x0B"sv, "\x0C"sv, "\x00\x01"sv,
        "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"sv, "\x20\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02"sv}) {
    EXPECT_EQ(refusal(broken), "the model is truncated or not a protobuf message");
  }
  EXPECT_EQ(refusal(field(1, field(1, "a")) + field(1, "\x0A\x09")), "piece 1 is truncated or not a protobuf message");
  EXPECT_EQ(refusal(field(2, "\xFF")), "the trainer's specification is truncated or not a protobuf message");
  EXPECT_EQ(refusal(field(3, "\xFF")), "the normaliser's specification is truncated or not a protobuf message");
}

TEST(ModelProto, RefusesFieldsOfAnotherType) {
  EXPECT_EQ(refusal("\x08\x01"), "the model has an invalid field 1");
  EXPECT_EQ(refusal(field(1, "\x08\x01")), "piece 0 has an invalid field 1");
  EXPECT_EQ(refusal(field(1, field(2, "x"))), "piece 0 has an invalid field 2");
  EXPECT_EQ(refusal(field(1, "\x18\x07")), "piece 0 has an invalid field 3");
  EXPECT_EQ(refusal(field(2, field(3, "x"))), "the trainer's specification has an invalid field 3");
  EXPECT_EQ(refusal(field(3, field(4, "x"))), "the normaliser's specification has an invalid field 4");
  // Fields that are not read may hold anything.
  EXPECT_EQ(parse_model_proto(field(9, "x") + "\x50\x01" + field(1, field(9, "x"))).take().pieces.size(), 1U);
}

TEST(ModelProto, ReadsUnescapedSpaces) {
  // No trainer writes such a model, but people edit models by hand.
  EXPECT_FALSE(parse_model_proto(field(3, std::string_view("\x28\x00", 2))).take().facts.escape_whitespaces);
}

TEST(ModelProto, ReadsDecodingRules) {
  EXPECT_TRUE(parse_model_proto(field(5, field(2, "rules"))).take().facts.has_denormalizer_rules);
  EXPECT_FALSE(parse_model_proto(field(5, field(1, "none"))).take().facts.has_denormalizer_rules);
}

}  // namespace
}  // namespace thinpipe
