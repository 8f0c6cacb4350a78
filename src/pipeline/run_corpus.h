// The corpus a run began with: what its folder keeps of it, and finding it again, whether or not the source is still
// where the config says.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "config/run_config.h"
#include "text/prepare.h"

namespace thinpipe {

// tokenizer.model, so that what was trained can be used where the corpus is not, and corpus_id. Leaves what is there.
Status keep_corpus(const std::filesystem::path& run_folder, const PreparedCorpus& corpus);

// Prepared from its source, or, where that cannot be found (another machine or working directory), the copy under
// cache_root/prepared/ that has the run's corpus id. Throws UserError, also when the source is another text by now.
PreparedCorpus corpus_of_run(const std::filesystem::path& run_folder, const DataConfig& data,
                             const std::filesystem::path& cache_root, const PrepareProgress& progress = {});

}  // namespace thinpipe
