// Text from a prompt, token by token, with a cache; and the way back from tokens to text that can be shown as it comes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/token_picker.h"
#include "model/kv_cache.h"
#include "model/stage.h"
#include "text/tokenizer.h"

namespace thinpipe {

// One sequence that is read and continued. The stage must hold the whole model and outlive this.
class Generator {
 public:
  // context: how many tokens the model looks back at most.
  Generator(const Stage& stage, const ModelConfig& config, int64_t context);

  // Reads these after what is there. When the context is full, the first token (begin of text) and the newest half of
  // the rest stay and the model reads them again, so a sequence may go on for ever.
  void read(std::span<const int32_t> tokens);
  // The token after all that was read, which is then read too. Something must have been read.
  Result<int32_t> next(TokenPicker& picker);
  // Forgets everything.
  void reset();

  const std::vector<int32_t>& tokens() const { return tokens_; }  // in the context now

 private:
  void make_room();
  void extend(std::span<const int32_t> tokens);

  const Stage& stage_;
  int64_t context_;
  KvCache cache_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;  // after the last of them
};

// Tokens in, text out, as soon as it is certain: a character that is spelled in several byte tokens comes whole.
class TextStream {
 public:
  // `before`: what stands in front of the text, whose own text is not given out.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before);

  std::string add(int32_t token);
  // What was still held back.
  std::string finish();

 private:
  std::string take(bool all);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t given_ = 0;  // bytes of the text of ids_
};

}  // namespace thinpipe
