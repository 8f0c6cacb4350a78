// The corpus of a run: what the run's folder stores about it, and how to find it again, even if the source is no longer
// where the config says.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "config/run_config.h"
#include "text/prepare.h"

namespace thinpipe {

// Saves tokenizer.model, so that the model can be used without the corpus, and corpus_id. Keeps existing files.
Status keep_corpus(const std::filesystem::path& run_folder, const PreparedCorpus& corpus);

// The copy under cache_root/prepared/ with the run's corpus id, whatever has become of the source. Without such a copy,
// prepares the corpus from its source; throws UserError if that is not the text that the run started with.
PreparedCorpus corpus_of_run(const std::filesystem::path& run_folder, const DataConfig& data,
                             const std::filesystem::path& cache_root, const PrepareProgress& progress = {});

}  // namespace thinpipe
