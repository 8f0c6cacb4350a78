// The MODEL that `eval`, `generate` and `export` are given: a run, a checkpoint of one, or a Hugging Face folder.
#pragma once

#include "commands.h"
#include "models/model_files.h"

namespace thinpipe {

// Throws UserError if there is no such model or no such device.
ModelFiles open_model(const ModelArgument& argument);

}  // namespace thinpipe
