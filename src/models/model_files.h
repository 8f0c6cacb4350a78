// A trained model on the disk, found by the path a person gives: a run's folder, a checkpoint of one, or a Hugging Face
// LLaMA folder. Opened, not loaded: its parameters are read one by one.
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
  // Sizes and kind of the model; of a run, its config. Of a Hugging Face folder, a dense model's, whose [data], [train]
  // and so on are the defaults but for vocab, seq_len (its context) and precision.
  RunConfig config;
  std::optional<std::filesystem::path> run;  // the run's folder, if it is one
  Tokenizer tokenizer;
  // By the names of docs/model.md, and "basis" (float64); on the CPU, in the file's type. An error names what is
  // missing.
  std::function<Result<at::Tensor>(const std::string& name)> parameter;
  at::Tensor table = {};  // T_fixed, where subspace.table names one (pipeline/table_file.h)

  int64_t vocab() const { return config.data.vocab; }
  int64_t context() const { return config.train.seq_len; }
};

// step: of a run, the newest checkpoint of that step, or the one of that generation; none: model.safetensors if the run
// is complete, else its newest checkpoint. Throws UserError when there is no model there, or one that is not whole.
ModelFiles open_run(const std::filesystem::path& run_folder, std::optional<int64_t> step,
                    std::optional<uint64_t> generation = {});
ModelFiles open_hf_folder(const std::filesystem::path& folder);

// All of the model as one stage. Throws UserError naming a parameter that is missing or has another shape.
std::unique_ptr<Stage> load_model(const ModelFiles& files, const std::string& device);

}  // namespace thinpipe
