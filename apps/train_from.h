// `thinpipe train --from RUN`: a new run that begins with the weights of another one. Its model is the same; text,
// training, optimizer and cuts may differ.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/run_config.h"
#include "models/model_files.h"
#include "text/prepare.h"

namespace thinpipe {

// What the new run is made of, checked.
struct RunFrom {
  ModelFiles model;
  RunConfig config;
  PreparedCorpus corpus;
};

// `from`: a run, or a checkpoint of one; `step`: of a checkpoint, or "". Keys that neither `config_file` ("": none) nor
// the overrides set are those of the old run; with a config file only the keys of the model are. Prepares the text with
// the old run's tokenizer. Throws UserError that names the key which does not fit the weights.
RunFrom run_from(const std::string& from, const std::string& step, const std::string& config_file,
                 std::span<const std::string> overrides, const PrepareProgress& progress);

// Makes the run's folder, with a checkpoint of step 0. `folder` as in begin_run_from().
std::filesystem::path begin_with_weights(const RunFrom& run, const std::filesystem::path& folder);

}  // namespace thinpipe
