// Between our models and a plain LLaMA. Out: a subspace model with fixed anchors and the joint norm IS one, once merged
// (METHOD 1): embedding = T_fixed + E U^T, o_proj = A1 U^T, down_proj = A2 U^T. In: a plain LLaMA is our dense model,
// with other names and its matrices the other way round.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "export/llama.h"
#include "inference/model_files.h"

namespace thinpipe {

// What of this model a plain LLaMA does not have, as UserError: sinusoidal positions, a norm of q and k, the split
// norm, trainable anchors.
LlamaShape plain_shape(const RunConfig& config);

// The merged model's values, computed in float64 and rounded once. `files` must outlive what is returned. Throws as
// plain_shape() does.
LlamaValues plain_values(const ModelFiles& files);

// The [model] section of such a LLaMA as a dense model.
ModelConfig dense_model_of(const LlamaShape& shape);
// A parameter of that dense model, by its name in docs/model.md; float32.
Result<at::Tensor> dense_parameter(const LlamaShape& shape, const LlamaValues& values, const std::string& name);

}  // namespace thinpipe
