// Text to token ids and back, by sentencepiece. llama.cpp and Hugging Face read the same .model file, and the ids are
// exactly sentencepiece's, so all of them tokenise as training did.
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
  float score = 0;   // BPE: the greater is merged first
  PieceType type = PieceType::kNormal;
};

struct TokenizerFacts {
  bool bpe = false;                   // else unigram, word or char
  bool byte_fallback = false;         // what no piece covers is spelled in bytes; else it is the unknown token
  bool whitespace_as_suffix = false;  // a space belongs to the word before it
  bool add_dummy_prefix = true;       // a space is put in front of the text
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;       // a space becomes U+2581
  std::string normalizer;               // "identity", "nmt_nfkc"...
  bool has_normalizer_rules = false;    // characters are replaced before the pieces are looked for
  bool has_denormalizer_rules = false;  // or after decoding
  int32_t unknown = -1;                 // id of the unknown token; sentencepiece loads no model without one
};

// What a sentencepiece .model says about itself. Whoever writes the model in another format needs it (src/export).
struct ModelProto {
  std::vector<Piece> pieces;  // by id
  TokenizerFacts facts;
};

// Reads the fields above from the bytes of a .model. The library does not show all of them and Debian does not ship the
// message's header, so they are read from protobuf's wire format. Hostile input: every length is checked. An error says
// which message is broken; it does not name the file.
Result<ModelProto> parse_model_proto(std::string_view model);

// Immutable once loaded; any number of threads may use it.
class Tokenizer {
 public:
  // An error if the file is not a sentencepiece model, is cut short, or has no begin-of-text token.
  static Result<Tokenizer> load(const std::filesystem::path& path);
  // The same for a file's bytes; `name` is what errors call it.
  static Result<Tokenizer> parse(std::string model, const std::string& name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // V: ids are 0 .. vocab() - 1.
  int64_t vocab() const { return vocab_; }
  int32_t bos() const { return bos_; }
  // -1 if the model has none.
  int32_t eos() const { return eos_; }
  // What the model says about an id, which must be in the vocabulary.
  const Piece& piece(int32_t id) const;
  const TokenizerFacts& facts() const { return proto_.facts; }
  // The whole .model file.
  const std::string& model() const { return model_; }

  // `text` must be valid UTF-8. Control tokens typed as text ("<s>") are ordinary text; none is added. Throws UserError
  // if sentencepiece can load the model but not apply it.
  std::vector<int32_t> encode(std::string_view text) const;
  // Control tokens decode to nothing, and bytes that are not a character to U+FFFD. An error names the first id that is
  // not in the vocabulary.
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
