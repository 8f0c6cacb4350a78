// Text from a prompt, token by token: TokenPicker chooses a token from the model's logits, Generator keeps the sequence
// and its cache, TextStream turns tokens into text that can be shown immediately.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "model/kv_cache.h"
#include "model/stage.h"
#include "models/pick_options.h"
#include "text/tokenizer.h"

namespace thinpipe {

// The same logits and seed give the same tokens.
class TokenPicker {
 public:
  // Throws UserError for an option that is out of range.
  explicit TokenPicker(const PickOptions& options);

  // Applies the temperature, then top-k, then top-p, and draws. Equal logits are ordered by id. Returns an error if a
  // logit is not a number.
  Result<int32_t> pick(std::span<const float> logits);

 private:
  PickOptions options_;
  CounterRng draws_;
  uint64_t picked_ = 0;
  std::vector<int32_t> order_;  // scratch: ids, most likely first
  std::vector<double> shares_;
};

// One sequence that is read and continued. The stage must hold the whole model and outlive this object.
class Generator {
 public:
  // context: the maximum number of tokens that the model looks back. pieces: only ids below it are chosen (the
  // tokenizer may have fewer pieces than the model has tokens); default: all.
  Generator(const Stage& stage, const ModelConfig& config, int64_t context, std::optional<int64_t> pieces = {});

  // Appends these to the sequence. When the context is full, the model keeps the first token (begin of text) and the
  // newest half of the others and reads them again, so a sequence may continue without end.
  void read(std::span<const int32_t> tokens);
  // Picks the next token and appends it. Something must have been read before.
  Result<int32_t> next(TokenPicker& picker);
  // Forgets everything.
  void reset();

  const std::vector<int32_t>& tokens() const { return tokens_; }  // those in the context

 private:
  void make_room();
  void extend(std::span<const int32_t> tokens);

  const Stage& stage_;
  int64_t context_;
  std::optional<int64_t> pieces_;
  KvCache cache_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;  // after the last token
};

// Tokens in, text out, as soon as it is certain: a character that is spelled in several byte tokens comes out whole.
// The pieces together are what the tokenizer decodes from all tokens at once; the cost per token does not grow.
class TextStream {
 public:
  // `before`: the tokens before the text, which are not output; they end with a whole character.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before);

  std::string add(int32_t token);
  // The rest that was held back.
  std::string finish();

 private:
  void find_stand_in();
  std::string take(bool all);

  const Tokenizer& tokenizer_;
  // The tokens to decode: all of them, or `stand_in_` for those already output, and the others.
  std::vector<int32_t> ids_;
  size_t given_ = 0;  // bytes of the text of ids_ that were output
  std::optional<int32_t> stand_in_;
  size_t stand_in_bytes_ = 0;
};

}  // namespace thinpipe
