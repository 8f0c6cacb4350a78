// A checkpoint of the store cut anew and put in its own place; recut.cc does the cutting.
#include <fmt/format.h>

#include <utility>

#include "base/files.h"
#include "checkpoint/recut.h"

namespace thinpipe {
namespace fs = std::filesystem;

Result<CheckpointManifest> recut_checkpoint(CheckpointStore& store, const CheckpointManifest& manifest,
                                            const NewCuts& to, const RecutManifest& says, const fs::path& scratch) {
  if (auto status = remove_tree(scratch); !status) return status.error();
  if (auto status = make_directories(scratch); !status) return status.error();
  std::vector<fs::path> old_files;
  for (const auto& file : manifest.files) old_files.push_back(store.path_of(manifest.step, file.name));
  auto recut = manifest;
  recut.cuts = to.cuts;
  recut.config_sha256 = says.config_sha256;
  recut.generation = says.generation;
  recut.machine = says.machine;
  recut.files.clear();
  const auto work = [&]() -> Status {
    if (auto status = recut_stage_files(old_files, to, scratch); !status) return status;
    for (size_t stage = 0; stage < to.cuts.size(); ++stage) {
      auto file = store.receive_copy(manifest.step, scratch / fmt::format("stage-{}.safetensors", stage));
      if (!file) return file.error();
      recut.files.push_back(std::move(file).take());
    }
    return store.commit(recut);
  };
  const auto status = work();
  (void)remove_tree(scratch);  // what stays is removed before the next one
  if (!status) return status.error();
  return recut;
}

}  // namespace thinpipe
