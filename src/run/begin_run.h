// Makes a run that begins from given weights instead of the seed's. The run is a folder with everything that a
// coordinator needs to resume from step 0: the config, the store and a checkpoint of step 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "pipeline/tensor_file.h"
#include "text/prepare.h"

namespace thinpipe {

struct FirstWeights {
  NamedTensors parameters;  // by the names in docs/model.md, on the CPU, any floating type
  at::Tensor basis;         // U, (d, k) float64, orthonormal; undefined for a dense model
  at::Tensor table;         // T_fixed, (V, d) float32; undefined: from the seed
};

// Makes the run in `folder` and returns its path. The folder must be missing or empty; "" makes a new one under
// data_dir()/runs, named by the time. `thinpipe train --resume` and `serve --run` resume it. The parameters must be
// exactly those of the config's model, with their shapes, and finite; an error names the first that is not. Sets the
// run's model.table to the table's hash, whatever the config says. `origin` tells people where the weights come
// from; it becomes origin.txt. The folder appears whole or not at all. Throws UserError if the config or the corpus
// cannot make a run.
Result<std::filesystem::path> begin_run_from(const std::filesystem::path& folder, const RunConfig& config,
                                             const PreparedCorpus& corpus, const FirstWeights& weights,
                                             const std::string& origin);

}  // namespace thinpipe
