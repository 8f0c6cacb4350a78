#include "checkpoint/newest_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint_folder.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

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
  // A checkpoint that is not whole may have been removed or replaced under our eyes, which happens only where another
  // has come: look again until two looks say the same. Each look more is one that a coordinator has written for.
  std::optional<std::vector<int64_t>> steps_before;
  std::string reason_before;
  for (;;) {
    auto steps = checkpoint_steps(folder);
    if (!steps) return steps.error();
    std::string reason;
    std::optional<NewestCheckpoint> older;
    for (const int64_t step : steps.value()) {
      auto found = whole_checkpoint(checkpoint_step_folder(folder, step), step);
      if (found && reason.empty()) return found;
      if (found) {
        older = std::move(found).take();
        break;
      }
      if (reason.empty()) reason = found.error().message;
    }
    if (steps.value() == steps_before && reason == reason_before) {
      if (older) return *std::move(older);
      if (reason.empty()) return Error{fmt::format("{}: has no checkpoint yet", run_folder.string())};
      return Error{fmt::format("{}: has no whole checkpoint: {}", run_folder.string(), reason)};
    }
    steps_before = std::move(steps).take();
    reason_before = std::move(reason);
  }
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
