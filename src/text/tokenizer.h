// Text to token ids and back, by sentencepiece. The ids are exactly sentencepiece's, and llama.cpp and Hugging Face
// read the same .model file, so they all tokenise as training did.
//
// A tokenizer trained here (tokenizer_training.h) decodes every valid UTF-8 string to itself, with one exception:
// sentencepiece writes a space as U+2581, so U+2581 in the text reads back as a space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/sentencepiece_module.h"

namespace thinpipe {

enum class PieceType { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Piece {
  std::string text;  // with U+2581 for a space, as in the model; a byte is "<0x0A>"
  float score = 0;   // BPE: pieces with greater scores are merged first
  PieceType type = PieceType::kNormal;
};

struct TokenizerFacts {
  bool bpe = false;                   // else unigram, word or char
  bool byte_fallback = false;         // text that no piece covers becomes bytes; else the unknown token
  bool whitespace_as_suffix = false;  // a space belongs to the word before it
  bool add_dummy_prefix = true;       // a space is added before the text
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;       // a space becomes U+2581
  std::string normalizer;               // "identity", "nmt_nfkc"...
  bool has_normalizer_rules = false;    // characters are replaced before tokenising
  bool has_denormalizer_rules = false;  // characters are replaced after decoding
  int32_t unknown = -1;                 // id of the unknown token; sentencepiece requires one
};

// The contents of a sentencepiece .model, for code that writes the model in another format.
struct ModelProto {
  std::vector<Piece> pieces;  // by id
  TokenizerFacts facts;
};

// Reads these fields from the bytes of a .model. The library does not expose all of them and Debian does not ship the
// message's header, so they are parsed from protobuf's wire format. The input may be hostile: every length is checked.
// An error says which message is broken; it does not name the file.
Result<ModelProto> parse_model_proto(std::string_view model);

// Immutable once loaded; any number of threads may use it.
class Tokenizer {
 public:
  // An error if the file is not a sentencepiece model, is truncated, or has no begin-of-text token.
  static Result<Tokenizer> load(const std::filesystem::path& path);
  // The same for the bytes of a file; errors call it `name`.
  static Result<Tokenizer> parse(std::string model, const std::string& name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // V. Ids are 0 .. vocab() - 1.
  int64_t vocab() const { return vocab_; }
  int32_t bos() const { return bos_; }
  // -1 if the model has none.
  int32_t eos() const { return eos_; }
  // The model's entry for an id, which must be in the vocabulary.
  const Piece& piece(int32_t id) const;
  const TokenizerFacts& facts() const { return proto_.facts; }
  // The whole .model file.
  const std::string& model() const { return model_; }

  // `text` must be valid UTF-8. Control tokens typed as text ("<s>") are ordinary text; no control tokens are added.
  // Throws UserError if sentencepiece can load the model but not apply it.
  std::vector<int32_t> encode(std::string_view text) const;
  // Control tokens decode to nothing, invalid bytes to U+FFFD. An error names the first id that is not in the
  // vocabulary.
  Result<std::string> decode(std::span<const int32_t> ids) const;

 private:
  Tokenizer(std::unique_ptr<PieceModel> pieces, ModelProto proto, std::string model, std::string name);

  std::unique_ptr<PieceModel> pieces_;
  ModelProto proto_;
  std::string model_;
  std::string name_;
  int64_t vocab_;
  int32_t bos_;
  int32_t eos_;
};

}  // namespace thinpipe
