// Text to token ids and back, by sentencepiece. The .model file is the one llama.cpp and Hugging Face read, and ids are
// exactly what sentencepiece gives, so any of them tokenises as training did.
//
// A tokenizer trained here (tokenizer_training.h) gives back every valid UTF-8 string it is given, with one exception
// that lies in sentencepiece's model of a space: U+2581 in the text reads back as U+0020.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/model_proto.h"
#include "text/sentencepiece_api.h"

namespace thinpipe {

// Immutable once loaded; any number of threads may use it.
class Tokenizer {
 public:
  // An error if the file is no sentencepiece model, is cut short, or has no begin-of-text token.
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
  // if the model is one that sentencepiece loads but cannot apply.
  std::vector<int32_t> encode(std::string_view text) const;
  // Control tokens read as nothing, bytes that make no character as U+FFFD. An error names the first id that is not in
  // the vocabulary.
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
