#include "checkpoint/newest_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_folder.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// So often is the folder looked at anew when a checkpoint in it was not whole: it may have been removed under our eyes,
// which happens only where newer ones have come.
constexpr int kLooks = 3;

Result<NewestCheckpoint> whole_checkpoint(const fs::path& step_folder, int64_t step) {
  auto manifest = read_manifest(step_folder / "manifest.json");
  if (!manifest) return manifest.error();
  if (manifest.value().step != step) {
    return Error{fmt::format("{}: is of step {}, not {}", (step_folder / "manifest.json").string(),
                             manifest.value().step, step)};
  }
  if (auto status = check_hashes(step_folder, manifest.value()); !status) return status.error();
  NewestCheckpoint found{step, manifest.value().cuts, {}, {}};
  for (const auto& file : manifest.value().files) found.files.push_back(step_folder / file.name);
  found.manifest = std::move(manifest).take();
  return found;
}

}  // namespace

Result<NewestCheckpoint> newest_checkpoint(const fs::path& run_folder) {
  const auto folder = run_folder / "checkpoints";
  std::string reason;
  for (int look = 1; look <= kLooks; ++look) {
    reason.clear();
    const auto steps = checkpoint_steps(folder);
    if (!steps) return steps.error();
    for (const int64_t step : steps.value()) {
      auto found = whole_checkpoint(checkpoint_step_folder(folder, step), step);
      if (found && (reason.empty() || look == kLooks)) return found;
      if (!found && reason.empty()) reason = found.error().message;
    }
    if (reason.empty()) return Error{fmt::format("{}: has no checkpoint yet", run_folder.string())};
  }
  return Error{fmt::format("{}: has no whole checkpoint: {}", run_folder.string(), reason)};
}

Result<NewestCheckpoint> checkpoint_of_step(const fs::path& run_folder, int64_t step) {
  const auto folder = run_folder / "checkpoints";
  const auto steps = checkpoint_steps(folder);
  if (!steps) return steps.error();
  if (std::find(steps.value().begin(), steps.value().end(), step) == steps.value().end()) {
    return Error{fmt::format("{}: has no checkpoint of step {}; it has {}", run_folder.string(), step,
                             steps.value().empty() ? "none" : fmt::format("{}", fmt::join(steps.value(), ", ")))};
  }
  return whole_checkpoint(checkpoint_step_folder(folder, step), step);
}

}  // namespace thinpipe
