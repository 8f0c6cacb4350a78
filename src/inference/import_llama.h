// A plain LLaMA taken in as the first weights of a run. As a dense model it is taken as it is. As a subspace model its
// output projections are projected on the k directions that hold most of all of them together, which loses something,
// and what of the embedding lies outside becomes the frozen table, which loses nothing (METHOD 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "export/llama.h"

namespace thinpipe {

// What the subspace keeps of a block's output projection: ||W_p U||^2 / ||W_p||^2.
struct KeptEnergy {
  std::string name;  // "blocks.2.wp1"
  double kept;
};

struct ImportedModel {
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // by the names of docs/model.md, float32
  at::Tensor basis;                                            // (d, k) float64; undefined in a dense model
  at::Tensor table;                                            // (V, d) float32, likewise
  double energy_lost = 0;           // of all projected matrices together: 1 - sum ||W_p U||^2 / sum ||W_p||^2
  std::vector<KeptEnergy> outputs;  // of each
};

// `model`: dense_model_of(shape), or a subspace model of the same sizes with norm = "joint". An error is that of
// `values`.
Result<ImportedModel> import_llama(const LlamaShape& shape, const LlamaValues& values, const ModelConfig& model);

}  // namespace thinpipe
