// The config of a run that goes on. What it computes is fixed by its checkpoints; how it is carried out - the cuts, the
// links, when checkpoints are written, threads and devices - may be changed with --set.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/run_config.h"

namespace thinpipe {

// The run's own config.toml with these overrides (written as for load_config) on top. A number of stages without cuts
// means even cuts, unless it is the number there is; cuts without a number of stages bring theirs. UserError for a key
// that would change what is computed, by its name, and for everything that load_config refuses.
RunConfig load_resumed_config(const std::filesystem::path& path, std::span<const std::string> overrides);

}  // namespace thinpipe
