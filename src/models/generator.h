// Text from a prompt, token by token: TokenPicker chooses a token from the model's logits, Generator keeps the sequence
// and its cache, TextStream turns tokens into text that can be shown at once.
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
  // Throws UserError naming the option that is out of its range.
  explicit TokenPicker(const PickOptions& options);

  // Applies the temperature, then top-k, then top-p, and draws. Equal logits are taken in the order of their ids.
  // Returns an error if a logit is not a number.
  Result<int32_t> pick(std::span<const float> logits);

 private:
  PickOptions options_;
  CounterRng draws_;
  uint64_t picked_ = 0;
  std::vector<int32_t> order_;  // scratch: ids, likeliest first
  std::vector<double> shares_;
};

// One sequence that is read and continued. The stage must hold the whole model and outlive this.
class Generator {
 public:
  // context: how many tokens the model looks back at most. pieces: only ids below it are chosen (the tokenizer may have
  // fewer pieces than the model has tokens); default: all.
  Generator(const Stage& stage, const ModelConfig& config, int64_t context, std::optional<int64_t> pieces = {});

  // Appends these to the sequence. When the context is full, the model keeps the first token (begin of text) and the
  // newest half of the rest and reads them again, so a sequence may continue without end.
  void read(std::span<const int32_t> tokens);
  // Picks the token after all that was read, and reads it too. Something must have been read.
  Result<int32_t> next(TokenPicker& picker);
  // Forgets everything.
  void reset();

  const std::vector<int32_t>& tokens() const { return tokens_; }  // in the context now

 private:
  void make_room();
  void extend(std::span<const int32_t> tokens);

  const Stage& stage_;
  int64_t context_;
  std::optional<int64_t> pieces_;
  KvCache cache_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;  // after the last of them
};

// Tokens in, text out, as soon as it is certain: a character that is spelled in several byte tokens comes whole. All
// that is given out together is what the tokenizer makes of all tokens at once, at a cost per token that does not grow.
class TextStream {
 public:
  // `before`: what stands in front of the text, whose own text is not given out; it ends with a whole character.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before);

  std::string add(int32_t token);
  // What was still held back.
  std::string finish();

 private:
  void find_stand_in();
  std::string take(bool all);

  const Tokenizer& tokenizer_;
  // What is decoded: all tokens, or `stand_in_` for those whose text was given out and the others.
  std::vector<int32_t> ids_;
  size_t given_ = 0;  // bytes of the text of ids_
  std::optional<int32_t> stand_in_;
  size_t stand_in_bytes_ = 0;
};

}  // namespace thinpipe
