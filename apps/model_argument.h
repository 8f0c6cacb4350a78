// The MODEL that `eval`, `generate` and `export` are given: a run, a checkpoint of one, or a Hugging Face folder. Also
// the tokenizer of a model that a new run begins with.
#pragma once

#include <filesystem>

#include "base/work_line.h"
#include "commands.h"
#include "models/llama_shape.h"
#include "models/model_files.h"

namespace thinpipe {

// Throws UserError if there is no such model or no such device.
ModelFiles open_model(const ModelArgument& argument);

// Where the data folder keeps a tokenizer. It is named after its content: a run still needs it when the model that it
// began with is gone.
std::filesystem::path place_of(const Tokenizer& tokenizer);
void keep(const Tokenizer& tokenizer);

// The same values; every tensor that is asked for counts as done in `line`, which must outlive the result.
LlamaValues counted(LlamaValues values, WorkLine& line);

}  // namespace thinpipe
