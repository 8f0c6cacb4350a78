// A trained model on the disk, found by the path that a person gives: a run's folder, a checkpoint of a run, or a
// Hugging Face LLaMA folder. Opened, not loaded: its parameters are read one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "text/tokenizer.h"

namespace thinpipe {

struct ModelFiles {
  std::string title;  // for a person: "run kjv-1 (step 120)", "Hugging Face folder out"
  // For a run, its config. For a Hugging Face folder, the config of a dense model with default [data], [train] and so
  // on, except for vocab, seq_len (the model's context) and precision.
  RunConfig config;
  std::optional<std::filesystem::path> run;  // the run's folder, if it is a run
  Tokenizer tokenizer;
  // Takes the names of docs/model.md, and "basis" (float64). Returns the tensor on the CPU, in the file's type. An
  // error names what is missing.
  std::function<Result<at::Tensor>(const std::string& name)> parameter;
  at::Tensor table = {};  // T_fixed, if model.table names one (pipeline/table_file.h)

  int64_t vocab() const { return config.data.vocab; }
  int64_t context() const { return config.train.seq_len; }
};

// step: the newest checkpoint of that step, or the one of that generation; default: model.safetensors if the run is
// complete, else its newest checkpoint. Throws UserError if there is no model, or an incomplete one.
ModelFiles open_run(const std::filesystem::path& run_folder, std::optional<int64_t> step,
                    std::optional<uint64_t> generation = {});
ModelFiles open_hf_folder(const std::filesystem::path& folder);

// The whole model as one stage. Throws UserError that names a parameter that is missing or has a wrong shape.
std::unique_ptr<Stage> load_model(const ModelFiles& files, const std::string& device);

}  // namespace thinpipe
