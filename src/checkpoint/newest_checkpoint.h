// The newest whole checkpoint of a run, for those who only read weights: no lock, no change, also beside a coordinator
// that is training on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint_manifest.h"

namespace thinpipe {

struct NewestCheckpoint {
  int64_t step = 0;                          // committed steps
  std::vector<int64_t> cuts;                 // blocks per stage
  std::vector<std::filesystem::path> files;  // one per stage, in their order: safetensors (docs/checkpoints.md)
  CheckpointManifest manifest;               // all the rest, the files' hashes among it
};

// "Whole": the manifest is one, and every byte of every file is read and hashed. A coordinator at work may remove these
// files later: open them soon, ask again if one is gone, and keep them open; what is open stays readable.
// An error says why there is none.
Result<NewestCheckpoint> newest_checkpoint(const std::filesystem::path& run_folder);
// The one of that step, under the same conditions.
Result<NewestCheckpoint> checkpoint_of_step(const std::filesystem::path& run_folder, int64_t step);

}  // namespace thinpipe
