// The same checkpoint with other cuts: the stages' files taken apart and put together anew. Bytes are copied as they
// lie; whoever cuts holds no tensors, and cutting back gives the same files (docs/checkpoints.md, "With other cuts").
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint_store.h"

namespace thinpipe {

struct NewCuts {
  std::vector<int64_t> cuts;           // blocks per stage
  std::vector<int64_t> anchor_groups;  // blocks per trainable anchor table, empty if there are none
};

// Writes folder/stage-0.safetensors, ... from a checkpoint's stage files, which are given in their order. The folder
// must be there. Refused, with the file's name: files that are not the stages of one model at one step, a tensor whose
// place is not known, stands twice or is not in the stage it belongs to, a block without parameters, cuts of another
// number of blocks, and cuts that split an anchor group. After an error some of the files may be there.
Status recut_stage_files(const std::vector<std::filesystem::path>& stage_files, const NewCuts& to,
                         const std::filesystem::path& folder);

// What of a manifest follows the cuts.
struct RecutManifest {
  std::string config_sha256;
  int64_t generation = 0;  // not less than that of the checkpoint
  std::string machine;
};

// Replaces the checkpoint of that manifest, which must have been verified, by itself with these cuts, and returns the
// new manifest. `scratch` is a folder of the caller's choice on any disk, made and removed. Interrupted at any moment,
// the store has the old one or the new one.
Result<CheckpointManifest> recut_checkpoint(CheckpointStore& store, const CheckpointManifest& manifest,
                                            const NewCuts& to, const RecutManifest& says,
                                            const std::filesystem::path& scratch);

}  // namespace thinpipe
