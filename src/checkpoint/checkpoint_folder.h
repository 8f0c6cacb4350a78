// What lies in a folder of checkpoints, read without owning it: shared by the store and by those who only look. Private
// to this folder of src/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint_manifest.h"

namespace thinpipe {

// Steps that have a folder, newest first; none when `folder` is not there.
Result<std::vector<int64_t>> checkpoint_steps(const std::filesystem::path& folder);
std::filesystem::path checkpoint_step_folder(const std::filesystem::path& folder, int64_t step);

Result<CheckpointManifest> read_manifest(const std::filesystem::path& path);
// Every file of the manifest is there and has its size.
Status check_sizes(const std::filesystem::path& step_folder, const CheckpointManifest& manifest);
// And, every byte of it read, its hash.
Status check_hashes(const std::filesystem::path& step_folder, const CheckpointManifest& manifest);

}  // namespace thinpipe
