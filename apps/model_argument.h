// The MODEL that `eval`, `generate` and `export` are given: a run, a checkpoint of one, or a Hugging Face folder.
#pragma once

#include <memory>
#include <string>

#include "models/model_files.h"

namespace CLI {
class App;
}

namespace thinpipe {

struct ModelArgument {
  std::string where;  // empty: the newest run
  std::string step;   // empty: the run's last
  std::string device = "cpu";
};

// Adds the argument MODEL and --step, and --device where the model is to be computed with.
void add_model_argument(CLI::App& command, ModelArgument& argument, bool computes);

// Throws UserError when there is no model there, or no such device.
ModelFiles open_model(const ModelArgument& argument);

}  // namespace thinpipe
