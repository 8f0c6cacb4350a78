// Small models as `eval`, `generate` and `export` find them, without a disk, and a tokenizer trained on the fly.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "model/fill.h"
#include "model/kv_cache.h"
#include "model/stage.h"
#include "models/model_files.h"
#include "support/draw.h"
#include "text/tokenizer.h"
#include "text/tokenizer_training.h"

namespace thinpipe {

constexpr int64_t kSmallVocab = 300;

// Trained on a few words: all 256 bytes and some merges.
inline Tokenizer small_tokenizer() {
  static const std::string model = [] {
    std::string text;
    const CounterRng rng(3, "words");
    for (uint64_t i = 0; i < 4000; ++i) {
      static const char* kWords[] = {"the", "stream", "flows", "in", "a", "narrow", "bed", "and", "rests", "below"};
      text += std::string(kWords[test::below(rng, 10, i)]) + (i % 11 == 10 ? "\n" : " ");
    }
    bool given = false;
    return train_tokenizer(
               [&](std::string& document) -> Result<bool> {
                 document = text;
                 return !std::exchange(given, true);
               },
               text.size(), kSmallVocab)
        .take();
  }();
  return Tokenizer::parse(model, "the test's tokenizer").take();
}

inline RunConfig small_dense() {
  RunConfig config;
  config.model.mode = ModelMode::kDense;
  config.model.d = 16;
  config.model.blocks = 3;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.mlp_width = 24;
  config.model.init_std = 0.3;
  config.data.vocab = kSmallVocab;
  config.train.seq_len = 32;
  config.train.precision = Precision::kFloat64;
  config.train.seed = 11;
  return config;
}

inline RunConfig small_subspace() {
  auto config = small_dense();
  config.model.mode = ModelMode::kSubspace;
  config.model.subspace.rank = 5;
  config.model.subspace.full_rank_tail = 1;
  return config;
}

// The model that config and seed give, with gains that are not all 1.
inline std::shared_ptr<Stage> make_model(const RunConfig& config) {
  auto stage =
      std::make_shared<Stage>(config.model, config.data.vocab, BlockRange{0, config.model.blocks, config.model.blocks},
                              config.train.precision, config.train.seed, at::Device("cpu"));
  for (auto& parameter : stage->parameters().all()) {
    if (parameter.kind != ParameterKind::kGain) continue;
    parameter.value.copy_(at::linspace(0.5, 1.5, parameter.value.numel(), parameter.value.options()));
  }
  return stage;
}

inline ModelFiles files_of(const RunConfig& config, std::shared_ptr<Stage> stage) {
  return {"the test's model", config, std::nullopt, small_tokenizer(),
          [stage](const std::string& name) -> Result<at::Tensor> {
            if (name == "basis") return stage->subspace()->basis().u;
            const auto* parameter = stage->parameters().find(name);
            if (parameter == nullptr) return Error{"has no tensor '" + name + "'"};
            return parameter->value;
          }};
}

// Begin of text, then ids from 3 on: no control tokens.
inline std::vector<int32_t> some_tokens(size_t count, uint64_t stream = 1) {
  std::vector<int32_t> tokens{1};
  const CounterRng rng(5, stream);
  while (tokens.size() < count)
    tokens.push_back(3 + static_cast<int32_t>(test::below(rng, kSmallVocab - 3, tokens.size())));
  return tokens;
}

// (1, n)
inline TokenBatch batch_of(const std::vector<int32_t>& tokens) {
  return {at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong).unsqueeze(0)};
}

// (tokens, V)
inline at::Tensor logits_of(const Stage& stage, const ModelConfig& model, const std::vector<int32_t>& ids) {
  KvCache cache(model, static_cast<int64_t>(ids.size()), stage.options());
  return stage.logits(stage.extend(ids_tensor(ids, stage.options()), cache));
}

}  // namespace thinpipe
