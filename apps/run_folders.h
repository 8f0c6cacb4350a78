// The runs of this machine, by name or folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/run_files.h"

namespace thinpipe {

// Folders under data_dir()/runs that hold a config.toml, newest last.
std::vector<std::filesystem::path> known_runs();

// A folder, or a name that known_runs() has; empty: the newest of them.
Result<std::filesystem::path> find_run(const std::string& name);

// Runs of others that this machine has joined.
struct JoinedFolder {
  std::filesystem::path folder;
  JoinedRun joined;
};
std::vector<JoinedFolder> joined_runs();
// Their folders, and those of runs in which this machine has not taken part yet.
std::vector<std::filesystem::path> joined_folders();
// By the name that its organiser gave it, or by the beginning of its id; empty: the only one. nullopt: none has it.
// Throws UserError if several do.
std::optional<JoinedFolder> find_joined_run(const std::string& name);
// "takes part", why it waits, or how its last visit ended.
std::string state_of(const JoinedFolder& run);

// How a command line names a run: by its name if known_runs() has it, else by its folder.
std::string argument_of(const std::filesystem::path& run);

// The newest run that is `wanted`. `what` completes "no run of this machine ...".
Result<std::filesystem::path> newest_run(bool (*wanted)(const std::filesystem::path&), const std::string& what);
// It has weights, final ones or those of a checkpoint.
bool has_model(const std::filesystem::path& run);
// It has been started, or imported, and is not complete.
bool can_be_resumed(const std::filesystem::path& run);

// Stands for the newest run that can be resumed, where a command resumes one.
inline constexpr const char* kNewest = "newest";
// The run to resume: kNewest, or as find_run().
Result<std::filesystem::path> find_run_to_resume(const std::string& name);

// Where a new run goes, if it is given a name or a folder (not both). "": a new folder, named after the time.
Result<std::filesystem::path> folder_for_new_run(const std::string& name, const std::string& folder);

// The state of a run: "running", "complete", "stopped", "failed: reason", "in process".
std::string state_of(const std::filesystem::path& run);

}  // namespace thinpipe
