#include "run_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/files.h"
#include "run/run_files.h"

namespace thinpipe {

std::vector<std::filesystem::path> known_runs() {
  std::vector<std::filesystem::path> runs;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(data_dir() / "runs", ignored)) {
    if (entry.path().filename().string().starts_with(".")) continue;  // one that is still being created
    if (std::filesystem::exists(entry.path() / "config.toml", ignored)) runs.push_back(entry.path());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

Result<std::filesystem::path> find_run(const std::string& name) {
  std::error_code ignored;
  const auto runs = known_runs();
  if (name.empty()) {
    if (runs.empty()) return Error{"there are no runs yet; `thinpipe train` starts one"};
    return runs.back();
  }
  for (const auto& path : {std::filesystem::path(name), data_dir() / "runs" / name}) {
    if (std::filesystem::exists(path / "config.toml", ignored)) return std::filesystem::absolute(path);
  }
  return Error{
      fmt::format("there is no run '{}': needs the folder of a run, or a name that `thinpipe runs` lists", name)};
}

std::string state_of(const std::filesystem::path& run) {
  const auto place = read_coordinator_place(run);
  if (place && place.value().pid > 0 && ::kill(static_cast<pid_t>(place.value().pid), 0) == 0) return "running";
  std::error_code ignored;
  if (const auto outcome = read_outcome(run)) {
    if (outcome.value().failed) return fmt::format("failed: {}", outcome.value().reason);
    return outcome.value().complete ? "complete" : "stopped";
  }
  if (std::filesystem::exists(run / "run.sqlite", ignored)) return "interrupted";
  return std::filesystem::exists(run / "model.safetensors", ignored) ? "complete" : "in process, or ended early";
}

}  // namespace thinpipe
