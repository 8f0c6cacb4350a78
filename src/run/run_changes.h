// Changes the settings with which a run resumes: cuts, links, threads (load_resumed_config() says what may change).
// Writes them down before the run uses them, so that every later resume uses the same settings.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/run_config.h"

namespace thinpipe {

// Returns the run's config with these overrides and writes it to the run's config.toml. With other cuts, no worker
// keeps its stage. Throws UserError if an override names a key that decides what is computed, if the run is complete,
// or if somebody serves it.
RunConfig change_run(const std::filesystem::path& folder, std::span<const std::string> overrides);

// SHA-256 of the config without its cuts. Workers get the cuts with every epoch.
std::string config_identity(RunConfig config);

}  // namespace thinpipe
