// Files that a coordinator leaves in its run's folder for other processes of this machine: its address, and how the run
// ended. Also where a joined run is. Without libtorch, because `thinpipe status` and `thinpipe runs` need them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace thinpipe {

// Where a run's coordinator is, for the commands that talk to it.
struct CoordinatorPlace {
  std::string address;  // for this machine
  int64_t pid = 0;
  std::string run;
};
Result<CoordinatorPlace> read_coordinator_place(const std::filesystem::path& run_folder);

// Where a run's dashboard is. Only the owner can read the file, because the address holds the token.
struct DashboardPlace {
  std::string address;  // with the token
  int port = 0;
  int64_t pid = 0;
};
Result<DashboardPlace> read_dashboard_place(const std::filesystem::path& run_folder);
Status write_dashboard_place(const std::filesystem::path& run_folder, const DashboardPlace& place);

// How a run ended, for the process that started it: outcome.json.
struct RunOutcome {
  bool failed = false;
  bool complete = false;  // all steps done, model.safetensors written
  std::string reason;
  int64_t step = 0;
  int64_t manifest_step = 0;
  double loss = 0;             // NaN if it was not finite
  double validation_loss = 0;  // NaN if it was not finite
  uint64_t step_bytes = 0;
  bool interrupted = false;  // by a signal to the process that started it; not in the file
};
Result<RunOutcome> read_outcome(const std::filesystem::path& run_folder);

// Where this machine keeps its files of a run that it has joined. Throws UserError for an invalid name: it comes from
// an invite.
std::filesystem::path join_folder(const std::string& run);

// "; the disk of FOLDER is full: ..." and what to do, if hardly anything can be written there; otherwise "".
std::string full_disk_advice(const std::filesystem::path& run_folder);

}  // namespace thinpipe
