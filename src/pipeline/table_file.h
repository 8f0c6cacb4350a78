// T_fixed as a file (METHOD 1). A run whose table does not come from the seed has it as
// tables/HASH.safetensors: one tensor "t_fixed" (V, d) of float32. HASH is FixedTable::hash(), SHA-256 over the rows as
// little-endian float32. model.table holds it, so the config is enough to check a file.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "store/checkpoints.h"

namespace thinpipe {

// Loads the table that the config names and checks every byte. The config must name one.
Result<at::Tensor> load_table(const std::filesystem::path& path, const RunConfig& config, int64_t vocab);
// The same for the folder of a run; undefined if the config names no table.
Result<at::Tensor> table_of_run(const std::filesystem::path& folder, const RunConfig& config, int64_t vocab);

// Copies the table that the config names from another folder, unless `folder` has it or the other one has not.
Status bring_table(const std::filesystem::path& folder, const RunConfig& config, const std::filesystem::path& other);

// Saves (V, d) float32 and returns its hash. The file is on the disk when it returns.
Result<std::string> save_table(const std::filesystem::path& folder, const at::Tensor& table);

}  // namespace thinpipe
