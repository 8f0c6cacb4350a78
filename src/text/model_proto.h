// What a sentencepiece .model says about itself, read from its bytes: the pieces with their scores and types, and how
// text is normalised before they are looked for. Whoever writes the model into another format needs it (src/export).
// The library does not show all of it, nor Debian the header of the message, so the few fields that are needed are read
// from protobuf's wire format. Hostile input: every length is checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

enum class PieceType { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Piece {
  std::string text;  // with U+2581 for a space, as in the model; a byte is "<0x0A>"
  float score = 0;   // BPE: the greater is merged first
  PieceType type = PieceType::kNormal;
};

struct TokenizerFacts {
  bool bpe = false;                   // else one of sentencepiece's other kinds: unigram, word, char
  bool byte_fallback = false;         // what no piece covers is spelled in bytes, else it is the unknown token
  bool whitespace_as_suffix = false;  // a space belongs to the word before it
  bool add_dummy_prefix = true;       // text begins as if a space stood before it
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;       // a space becomes U+2581
  std::string normalizer;               // "identity", "nmt_nfkc"...
  bool has_normalizer_rules = false;    // characters are replaced before the pieces are looked for
  bool has_denormalizer_rules = false;  // or after decoding
  int32_t unknown = -1;                 // id of the unknown token; sentencepiece loads no model without one
};

struct ModelProto {
  std::vector<Piece> pieces;  // by id
  TokenizerFacts facts;
};

// An error says which message is broken where; it does not name the file.
Result<ModelProto> parse_model_proto(std::string_view model);

}  // namespace thinpipe
