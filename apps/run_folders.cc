#include "run_folders.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/line.h"
#include "run/presence.h"
#include "run/run_files.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

// When a run began, as text that sorts: its name, if that is a time, else the time of its config.
std::string begin_of(const std::filesystem::path& run) {
  const auto name = run.filename().string();
  constexpr std::string_view kForm = "0000-00-00-00-00-00";
  const bool is_time = name.size() >= kForm.size() &&
                       std::equal(kForm.begin(), kForm.end(), name.begin(),
                                  [](char a, char b) { return a == '-' ? b == '-' : b >= '0' && b <= '9'; });
  if (is_time) return name;
  std::error_code code;
  const auto time = std::filesystem::last_write_time(run / "config.toml", code);
  if (code) return name;
  const auto since = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return fmt::format("{:%Y-%m-%d-%H-%M-%S}",
                     fmt::gmtime(std::chrono::duration_cast<std::chrono::seconds>(since).count()));
}

}  // namespace

std::vector<std::filesystem::path> known_runs() {
  std::vector<std::filesystem::path> runs;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(data_dir() / "runs", ignored)) {
    if (entry.path().filename().string().starts_with(".")) continue;  // one that is still being created
    if (std::filesystem::exists(entry.path() / "config.toml", ignored)) runs.push_back(entry.path());
  }
  std::vector<std::pair<std::string, std::filesystem::path>> by_time;
  for (auto& run : runs) by_time.emplace_back(begin_of(run), std::move(run));
  std::sort(by_time.begin(), by_time.end());
  std::transform(by_time.begin(), by_time.end(), runs.begin(), [](auto& one) { return std::move(one.second); });
  return runs;
}

std::vector<std::filesystem::path> joined_folders() {
  std::vector<std::filesystem::path> folders;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(data_dir() / "joined", ignored)) {
    folders.push_back(entry.path());
  }
  return folders;
}

std::vector<JoinedFolder> joined_runs() {
  std::vector<JoinedFolder> found;
  for (const auto& folder : joined_folders()) {
    if (auto joined = read_joined_run(folder)) found.push_back({folder, std::move(joined).value()});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.joined.name < b.joined.name; });
  return found;
}

std::optional<JoinedFolder> find_joined_run(const std::string& name) {
  auto runs = joined_runs();
  std::erase_if(runs, [&](const auto& one) {
    return one.joined.name != name && !one.folder.filename().string().starts_with(name);
  });
  if (runs.empty()) return std::nullopt;
  if (runs.size() == 1) return std::move(runs.front());
  std::vector<std::string> ids;
  for (const auto& one : runs) ids.push_back(one.folder.filename().string().substr(0, 8));
  throw UserError(fmt::format("this machine has joined {} runs{}: give one of {}", runs.size(),
                              name.empty() ? "" : fmt::format(" like '{}'", name), fmt::join(ids, ", ")));
}

std::string state_of(const JoinedFolder& run) {
  if (takes_part(run.folder)) return one_line(read_presence(run.folder).value_or(kTakesPart));
  return run.joined.ended.empty() ? "interrupted" : run.joined.ended;
}

std::string argument_of(const std::filesystem::path& run) {
  return run.parent_path() == data_dir() / "runs" ? run.filename().string() : run.string();
}

bool has_model(const std::filesystem::path& run) {
  std::error_code ignored;
  if (std::filesystem::exists(run / "model.safetensors", ignored)) return true;
  const auto checkpoints = checkpoints_of(run);
  return checkpoints && !checkpoints.value().empty();
}

Result<std::filesystem::path> newest_run(bool (*wanted)(const std::filesystem::path&), const std::string& what) {
  const auto runs = known_runs();
  const auto found = std::find_if(runs.rbegin(), runs.rend(), wanted);
  if (found != runs.rend()) return *found;
  return Error{runs.empty() ? "there are no runs yet; `thinpipe train` starts one" : "no run of this machine " + what};
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

bool can_be_resumed(const std::filesystem::path& run) {
  const auto outcome = read_outcome(run);
  std::error_code ignored;
  return std::filesystem::exists(run / "run.sqlite", ignored) && !(outcome && outcome.value().complete);
}

Result<std::filesystem::path> find_run_to_resume(const std::string& name) {
  if (name != kNewest) return find_run(name);
  return newest_run(can_be_resumed, "can be resumed: those that were started are complete");
}

Result<std::filesystem::path> folder_for_new_run(const std::string& name, const std::string& folder) {
  if (name.empty()) return std::filesystem::path(folder);
  if (!folder.empty()) return Error{"--name and --run-dir both say where the run goes: leave one of them out"};
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
  if (!plain || name.front() == '.' || name.front() == '-' || name == kNewest) {
    return Error{
        fmt::format("--name {}: needs letters, digits, dots, dashes and underscores, with a letter or a digit "
                    "first; \"{}\" is taken",
                    name, kNewest)};
  }
  return data_dir() / "runs" / name;
}

std::string state_of(const std::filesystem::path& run) {
  const auto place = read_coordinator_place(run);
  if (place && place.value().pid > 0 && ::kill(static_cast<pid_t>(place.value().pid), 0) == 0) return "running";
  std::error_code ignored;
  if (const auto outcome = read_outcome(run)) {
    if (outcome.value().failed) return fmt::format("failed: {}", outcome.value().reason);
    return outcome.value().complete ? "complete" : "stopped";
  }
  const bool began = std::filesystem::exists(run / "metrics.jsonl", ignored);
  if (!began && std::filesystem::exists(run / "origin.txt", ignored)) return "imported, not trained yet";
  if (std::filesystem::exists(run / "run.sqlite", ignored)) return "interrupted";
  return std::filesystem::exists(run / "model.safetensors", ignored) ? "complete" : "in process, or ended early";
}

}  // namespace thinpipe
