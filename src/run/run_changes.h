// Resuming a run with other settings: cuts, links, threads (load_resumed_config() says what may change). They are
// written down before any of it is done, so that whoever resumes the run later, after any interruption, uses the same.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/run_config.h"

namespace thinpipe {

// The run's config with these overrides, which is its config.toml from now on. With other cuts whatever workers still
// hold is void: nobody keeps a stage. Throws UserError if an override names a key that decides what is computed, if the
// run is complete, or if somebody serves it.
RunConfig change_run(const std::filesystem::path& folder, std::span<const std::string> overrides);

// What the run is but for its cuts, which workers hear with every epoch: SHA-256 of the config without them.
std::string config_identity(RunConfig config);

}  // namespace thinpipe
