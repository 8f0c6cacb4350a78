// What `thinpipe train` prints when a run is complete: a sample of the model's text, and what to do with it next.
#pragma once

#include <filesystem>
#include <string>

#include "config/run_config.h"
#include "text/prepared.h"

namespace thinpipe {

// One line: how the model of this run continues the first words of the validation text, or why there is no sample.
// Never throws, because the run is complete without it.
std::string sample_line(const std::filesystem::path& run, const PreparedCorpus& corpus);

// The commands that are worth trying now, one per line. resumable: the run has checkpoints.
std::string next_commands(const std::filesystem::path& run, const RunConfig& config, bool resumable);

}  // namespace thinpipe
