// Makes a run that begins from given weights instead of the seed's: a folder with everything that a coordinator needs
// to resume from step 0, which is the config, the store and a checkpoint of step 0.
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
  NamedTensors parameters;  // by the names of docs/model.md, on the CPU, of any floating type
  at::Tensor basis;         // U, (d, k) float64, orthonormal; undefined for a dense model
  at::Tensor table;         // T_fixed, (V, d) float32; undefined: from the seed
};

// Makes the run in `folder`, which must not be there or be empty ("": a new one under data_dir()/runs, named by the
// time), and returns its path. `thinpipe train --resume` and `serve --run` resume it. The parameters must be
// exactly those of the config's model, with their shapes, and finite; an error names the first that is not.
// subspace.table of the run is the table's hash, whatever the config says. `origin`: where the weights come from, for a
// person; kept as origin.txt. The folder appears whole or not at all. Throws UserError where the config or the corpus
// cannot be a run's.
Result<std::filesystem::path> begin_run_from(const std::filesystem::path& folder, const RunConfig& config,
                                             const PreparedCorpus& corpus, const FirstWeights& weights,
                                             const std::string& origin);

}  // namespace thinpipe
