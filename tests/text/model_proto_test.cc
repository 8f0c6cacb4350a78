// What a .model says about itself: against models sentencepiece has just written, told in every way that matters, and
// against bytes nobody wrote.
#include "text/model_proto.h"

#include <gtest/gtest.h>

#include "text/text_files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_training.h"

namespace thinpipe {
namespace {

using test::english;

class OneChunk final : public ChunkSource {
 public:
  explicit OneChunk(std::string text) : text_(std::move(text)) {}
  const std::string* next() override { return std::exchange(given_, true) ? nullptr : &text_; }

 private:
  std::string text_;
  bool given_ = false;
};

using Options = std::vector<std::pair<std::string, std::string>>;

ModelProto trained(Options options) {
  OneChunk chunk(english(60, 1));
  options.insert(options.end(), {{"max_sentence_length", "100000"}, {"hard_vocab_limit", "false"}});
  options.insert(options.end(), {{"num_threads", "1"}, {"minloglevel", "3"}});
  std::string model;
  const auto problem = sentencepiece_api().train(options, chunk, &model);
  EXPECT_EQ(problem, "");
  return parse_model_proto(model).take();
}

const Tokenizer& own_tokenizer() {
  static const Tokenizer tokenizer = [] {
    const DocumentSource documents = [given = false](std::string& document) mutable -> Result<bool> {
      document = english(300, 1);
      return !std::exchange(given, true);
    };
    return Tokenizer::parse(train_tokenizer(documents, 20'000, 380).take(), "own.model").take();
  }();
  return tokenizer;
}

TEST(ModelProto, KnowsTheKindOfTokenizerThatIsTrainedHere) {
  const auto& facts = own_tokenizer().facts();
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

TEST(ModelProto, HasEveryPieceAsSentencepieceUsesIt) {
  const auto& tokenizer = own_tokenizer();
  EXPECT_EQ(tokenizer.piece(0).type, PieceType::kUnknown);
  EXPECT_EQ(tokenizer.piece(1).type, PieceType::kControl);
  EXPECT_EQ(tokenizer.piece(1).text, "<s>");
  EXPECT_EQ(tokenizer.piece(2).text, "</s>");
  for (int32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(tokenizer.piece(3 + byte).text, fmt::format("<0x{:02X}>", byte));
    EXPECT_EQ(tokenizer.piece(3 + byte).type, PieceType::kByte);
  }
  for (int32_t id = 259; id < 380; ++id) {
    const Piece& piece = tokenizer.piece(id);
    EXPECT_EQ(piece.type, PieceType::kNormal);
    // BPE counts its pieces downwards from 0, in the order they were found.
    EXPECT_EQ(piece.score, static_cast<float>(259 - id));
    if (!piece.text.starts_with("\u2581")) {
      EXPECT_EQ(tokenizer.decode(std::vector{id}).take(), piece.text);
    }
  }
}

TEST(ModelProto, TellsOtherTokenizersApart) {
  const auto unigram = trained({{"model_type", "unigram"}, {"vocab_size", "80"}}).facts;
  EXPECT_FALSE(unigram.bpe);
  EXPECT_FALSE(unigram.byte_fallback);
  EXPECT_EQ(unigram.normalizer, "nmt_nfkc");
  EXPECT_TRUE(unigram.has_normalizer_rules);
  EXPECT_TRUE(unigram.remove_extra_whitespaces);

  const Options bpe{{"model_type", "bpe"}, {"vocab_size", "80"}, {"normalization_rule_name", "identity"}};
  const auto with = [&](const std::string& option, const std::string& value) {
    Options options = bpe;
    options.emplace_back(option, value);
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

TEST(ModelProto, RefusesBytesThatAreNoMessage) {
  using namespace std::string_view_literals;
  for (const auto broken :
       {"\x80"sv, "\x08"sv,
        "\x0A\x04"
        "abc"sv,
        "\x0D\x01\x02\x03"sv, "\x09\x01"sv, "\x0B"sv, "\x0C"sv, "\x00\x01"sv,
        "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"sv, "\x20\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02"sv}) {
    EXPECT_EQ(refusal(broken), "the model is cut short or no protobuf message");
  }
  EXPECT_EQ(refusal(field(1, field(1, "a")) + field(1, "\x0A\x09")), "piece 1 is cut short or no protobuf message");
  EXPECT_EQ(refusal(field(2, "\xFF")), "the trainer's specification is cut short or no protobuf message");
  EXPECT_EQ(refusal(field(3, "\xFF")), "the normaliser's specification is cut short or no protobuf message");
}

TEST(ModelProto, RefusesFieldsOfAnotherType) {
  EXPECT_EQ(refusal("\x08\x01"), "the model has a field 1 that it cannot have");
  EXPECT_EQ(refusal(field(1, "\x08\x01")), "piece 0 has a field 1 that it cannot have");
  EXPECT_EQ(refusal(field(1, field(2, "x"))), "piece 0 has a field 2 that it cannot have");
  EXPECT_EQ(refusal(field(1, "\x18\x07")), "piece 0 has a field 3 that it cannot have");
  EXPECT_EQ(refusal(field(2, field(3, "x"))), "the trainer's specification has a field 3 that it cannot have");
  EXPECT_EQ(refusal(field(3, field(4, "x"))), "the normaliser's specification has a field 4 that it cannot have");
  // What is not looked at may be anything.
  EXPECT_EQ(parse_model_proto(field(9, "x") + "\x50\x01" + field(1, field(9, "x"))).take().pieces.size(), 1U);
}

TEST(ModelProto, SeesSpacesThatAreNotEscaped) {
  // No trainer writes such a model; models are changed by hand.
  EXPECT_FALSE(parse_model_proto(field(3, std::string_view("\x28\x00", 2))).take().facts.escape_whitespaces);
}

TEST(ModelProto, SeesRulesForDecoding) {
  EXPECT_TRUE(parse_model_proto(field(5, field(2, "rules"))).take().facts.has_denormalizer_rules);
  EXPECT_FALSE(parse_model_proto(field(5, field(1, "none"))).take().facts.has_denormalizer_rules);
}

}  // namespace
}  // namespace thinpipe
