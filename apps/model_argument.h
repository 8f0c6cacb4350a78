// The MODEL that `eval`, `generate` and `export` are given: a run, a checkpoint of one, or a Hugging Face folder.
#pragma once

#include "base/work_line.h"
#include "commands.h"
#include "models/llama_shape.h"
#include "models/model_files.h"

namespace thinpipe {

// Throws UserError if there is no such model or no such device.
ModelFiles open_model(const ModelArgument& argument);

// The same values; every tensor that is asked for counts as done in `line`, which must outlive the result.
LlamaValues counted(LlamaValues values, WorkLine& line);

}  // namespace thinpipe
