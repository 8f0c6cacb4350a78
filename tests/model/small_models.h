// Small models in every form that a model can have: what the tests of model/ share.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "model/stage.h"

namespace thinpipe {

// Three blocks, 16 wide; as a subspace model of rank 5, with anchor groups of one block and two.
inline ModelConfig small_model(ModelMode mode) {
  ModelConfig config;
  config.mode = mode;
  config.d = 16;
  config.blocks = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.mlp_width = 24;
  config.init_std = 0.3;
  config.subspace.rank = 5;
  config.subspace.full_rank_tail = 1;
  config.subspace.anchor_groups = {1, 2};
  return config;
}

inline Stage uncut_stage(const ModelConfig& config, int64_t vocab) {
  return Stage(config, vocab, {0, config.blocks, config.blocks}, Precision::kFloat64, /*seed=*/7, at::Device("cpu"));
}

struct ModelCase {
  std::string name;
  ModelConfig config;
};

// Every kind of anchors with these tails.
inline std::vector<ModelCase> subspace_models(std::initializer_list<int64_t> tails) {
  std::vector<ModelCase> all;
  for (const int64_t tail : tails) {
    const auto add = [&](const std::string& name, Anchors anchors, Previous previous, int64_t anchor_rank = 0) {
      auto config = small_model(ModelMode::kSubspace);
      config.subspace.full_rank_tail = tail;
      config.subspace.anchors = anchors;
      config.subspace.previous = previous;
      config.subspace.anchor_rank = anchor_rank;
      all.push_back({name + ", tail " + std::to_string(tail), config});
    };
    add("fixed anchors", Anchors::kFixed, Previous::kNone);
    add("stage anchors", Anchors::kStage, Previous::kNone);
    add("previous token", Anchors::kStage, Previous::kTable);
    add("previous token of rank 3", Anchors::kStage, Previous::kTable, 3);
  }
  return all;
}

}  // namespace thinpipe
