// T_fixed as a file (METHOD 1): a run that began from an imported model brings its frozen token table as
// tables/HASH.safetensors, one tensor "t_fixed" (V, d) of float32. HASH is FixedTable::hash(), SHA-256 over the rows as
// little-endian float32, and is what subspace.table says: whoever has the config knows whether a file is the right one.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "store/checkpoints.h"

namespace thinpipe {

// The table that the config names, every byte checked. Must only be called where it names one.
Result<at::Tensor> load_table(const std::filesystem::path& path, const RunConfig& config, int64_t vocab);
// The same for the folder of a run: undefined where the config names none.
Result<at::Tensor> table_of_run(const std::filesystem::path& folder, const RunConfig& config, int64_t vocab);

// (V, d) float32 -> its hash. The file is on the disk when it returns.
Result<std::string> save_table(const std::filesystem::path& folder, const at::Tensor& table);

}  // namespace thinpipe
