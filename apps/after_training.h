// What `thinpipe train` prints when a run is complete: a sample of the model's text, and what to do with it next. Also
// the samples before that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "config/run_config.h"
#include "text/prepared.h"

namespace thinpipe {

// How the model of that checkpoint continues the first words of the validation text, on one line. Throws UserError if
// the model is too large for a sample, or the checkpoint is gone.
std::string sample_of(const std::filesystem::path& run, int64_t step);

// One line: how the model of this run continues the first words of the validation text, or why there is no sample.
// Keeps the sample in samples.jsonl in the run's folder. Never throws: the run is complete without it.
std::string sample_line(const std::filesystem::path& run, const PreparedCorpus& corpus);

// The commands that are worth trying now, one per line. resumable: the run has checkpoints.
std::string next_commands(const std::filesystem::path& run, const RunConfig& config, bool resumable);

}  // namespace thinpipe
