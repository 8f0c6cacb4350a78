// Changes the settings with which a run resumes: cuts, links, threads (load_resumed_config() says what may change), and
// its number of steps. Writes them down before the run uses them, so that every later resume uses the same settings.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/run_config.h"

namespace thinpipe {

struct ChangedRun {
  RunConfig config;
  std::string note;  // for the person: what a new number of steps means; empty if it is the same
};

// Returns the run's config with these overrides and writes it to the run's config.toml. With other cuts or another
// number of steps, no worker keeps its stage. With another number of steps a complete run is no longer complete, and
// what was written at its end is removed; the checkpoint of its last step must be there. Throws UserError if an
// override names a key that decides what is computed, if the run has done more steps, if it is complete and stays so,
// or if somebody serves it.
ChangedRun change_run(const std::filesystem::path& folder, std::span<const std::string> overrides);

// SHA-256 of the config without its cuts. Workers get the cuts with every epoch.
std::string config_identity(RunConfig config);

}  // namespace thinpipe
