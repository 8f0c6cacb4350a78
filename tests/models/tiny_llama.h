// A LLaMA small enough for a test: made-up weights, seeded, spread wide enough that its answers differ clearly, and a
// tokenizer trained on made-up text.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "models/llama_shape.h"
#include "support/draw.h"
#include "text/tokenizer.h"
#include "text/tokenizer_training.h"

namespace thinpipe::test {

// Words of syllables, some far more frequent than others, with punctuation, numbers, line ends and a few signs.
inline std::string made_up_text(size_t bytes, uint64_t seed) {
  static constexpr const char* kSyllables[] = {"ba", "ren", "to", "li", "sha", "mor", "e", "qu\u00e9", "nd", "ing",
                                               "a",  "ter", "vi", "o",  "kel", "sun", "W", "The",      "st", "\u00df"};
  static constexpr const char* kAfter[] = {" ", " ", " ", " ", " ", " ", ", ", ". ", ".\n", "\n\n", " - ", "; ", "  "};
  const CounterRng rng(seed, "made-up text");
  std::string text;
  uint64_t draw = 0;
  while (text.size() < bytes) {
    const double u = rng.uniform(draw++);
    const auto word = static_cast<uint64_t>(2000 * u * u * u);  // small numbers are frequent
    const CounterRng letters(word, "word");
    if (word % 41 == 40) {
      text += std::to_string(below(rng, 10000, draw++));
    } else {
      const uint64_t syllables = 1 + below(letters, 4, 0);
      for (uint64_t i = 1; i <= syllables; ++i) text += kSyllables[below(letters, std::size(kSyllables), i)];
    }
    text += kAfter[below(rng, std::size(kAfter), draw++)];
  }
  return text;
}

inline Tokenizer made_up_tokenizer(int64_t vocab, size_t bytes = 300'000) {
  const DocumentSource documents = [given = false, bytes](std::string& document) mutable -> Result<bool> {
    document = made_up_text(bytes, 7);
    return !std::exchange(given, true);
  };
  return Tokenizer::parse(train_tokenizer(documents, bytes, vocab).take(), "made-up.model").take();
}

inline const LlamaShape kTinyLlama{512, 64, 3, 4, 2, 160, 256, 10000.0, 1e-5};

// Gains around 1; matrices keep the size of what goes through them; the head spreads the logits.
inline std::vector<float> tiny_values(const LlamaTensor& tensor, uint64_t seed = 1) {
  const CounterRng rng(seed, tensor.name);
  size_t count = 1;
  for (const int64_t length : tensor.shape) count *= static_cast<size_t>(length);
  const bool norm = tensor.shape.size() == 1;
  double scale = norm ? 0.2 : 1.0 / std::sqrt(static_cast<double>(tensor.shape.back()));
  if (tensor.name == "lm_head.weight") scale *= 3;
  if (tensor.name == "model.embed_tokens.weight") scale = 1;
  // Attention that looks somewhere in particular.
  if (tensor.name.find("q_proj") != std::string::npos) scale *= 2;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((norm ? 1.0 : 0.0) + scale * rng.unit_variance(i));
  return values;
}

inline LlamaValues tiny_llama(const LlamaShape& shape, uint64_t seed = 1) {
  return [shape, seed](const std::string& name) -> Result<std::vector<float>> {
    for (const auto& tensor : llama_tensors(shape)) {
      if (tensor.name == name) return tiny_values(tensor, seed);
    }
    return Error{"no tensor " + name};
  };
}

inline const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = made_up_tokenizer(kTinyLlama.vocab);
  return tokenizer;
}

}  // namespace thinpipe::test
