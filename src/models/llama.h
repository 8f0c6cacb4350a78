// Conversion between our models and a LLaMA. Export: a subspace model with fixed anchors is a plain LLaMA once it is
// merged (METHOD 1): embedding = T_fixed + E U^T, o_proj = A1 U^T, down_proj = A2 U^T. With `anchors = "stage"` it also
// has token tables, and the embedding is E U^T. Import: a plain LLaMA is our dense model, with other names and
// transposed matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "models/llama_shape.h"
#include "models/model_files.h"

namespace thinpipe {

// The merged model, with token tables if it has trainable anchors. Throws UserError for features that neither has:
// sinusoidal positions, a norm of q and k.
LlamaShape merged_shape(const RunConfig& config);
// The same for a plain LLaMA: throws UserError for trainable anchors, too.
LlamaShape plain_shape(const RunConfig& config);
// What plain_shape() would throw, for those who begin a run: better known before the training than after it. Empty if
// the model is a plain LLaMA.
std::string export_limit(const RunConfig& config);

// The values of the merged model, computed in float64 and rounded once. `files` must outlive the result. Throws like
// merged_shape().
LlamaValues merged_values(const ModelFiles& files);

// The [model] section of a plain LLaMA as a dense model.
ModelConfig dense_model_of(const LlamaShape& shape);
// A parameter of that dense model, by its name in docs/model.md; float32.
Result<at::Tensor> dense_parameter(const LlamaShape& shape, const LlamaValues& values, const std::string& name);

// The part of a block's output projection that the subspace keeps: ||W_p U||^2 / ||W_p||^2.
struct KeptEnergy {
  std::string name;  // "blocks.2.wp1"
  double kept;
};

struct ImportedModel {
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // by the names of docs/model.md, float32
  at::Tensor basis;                                            // (d, k) float64; undefined in a dense model
  at::Tensor table;                                            // (V, d) float32; undefined in a dense model
  double energy_lost = 0;           // of all projected matrices together: 1 - sum ||W_p U||^2 / sum ||W_p||^2
  std::vector<KeptEnergy> outputs;  // per matrix
};

// Converts a plain LLaMA to the initial weights of a run. A dense model takes the values unchanged. A subspace model
// projects the output projections onto the k directions that hold most of all of them together, which loses a part; the
// rest of the embedding becomes the frozen table, so the embedding loses nothing (METHOD 1). `model`:
// dense_model_of(shape), or a subspace model of the same sizes. Returns the errors of `values`.
Result<ImportedModel> import_llama(const LlamaShape& shape, const LlamaValues& values, const ModelConfig& model);

}  // namespace thinpipe
