// The runs of this machine, by name or folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// Folders under data_dir()/runs that hold a config.toml, newest last.
std::vector<std::filesystem::path> known_runs();

// A folder, or a name that known_runs() has; empty: the newest of them.
Result<std::filesystem::path> find_run(const std::string& name);

// The state of a run: "running", "complete", "stopped", "failed: reason", "in process".
std::string state_of(const std::filesystem::path& run);

}  // namespace thinpipe
