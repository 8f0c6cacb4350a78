// Files that a coordinator leaves in its run's folder for other processes of this machine: its address, and how the run
// ended. Also where a joined run is. Without libtorch, because `thinpipe status` and `thinpipe runs` need them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

// What a run is called: the last part of its folder's path, as valid UTF-8 on one line.
std::string run_name(const std::filesystem::path& run_folder);

// A run of somebody else that this machine has joined, as its folder says: joined.json. Names and reasons come from its
// coordinator; reading makes them safe to print.
struct JoinedRun {
  std::string run;                     // 32 hex digits
  std::string name;                    // as its organiser calls it
  std::string peer;                    // this machine's name in it
  std::vector<std::string> addresses;  // of its coordinator
  int64_t stages = 0;
  int64_t stage = -1;  // the last one held; -1: none yet
  int64_t step = 0;    // of the run, when it was last heard of
  int64_t steps = 0;
  // What this machine has done for it, in all.
  int64_t steps_here = 0, tokens_here = 0, seconds_here = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  std::string ended;  // how the last visit ended; empty: it goes on, or was killed
  std::string model;  // the folder of the finished model, if it was kept
};
Result<JoinedRun> read_joined_run(const std::filesystem::path& folder);
Status write_joined_run(const std::filesystem::path& folder, const JoinedRun& joined);
// Whether a `thinpipe join` takes part from that folder now.
bool takes_part(const std::filesystem::path& folder);

// "; the disk of FOLDER is full: ..." and what to do, if hardly anything can be written there; otherwise "".
std::string full_disk_advice(const std::filesystem::path& run_folder);

}  // namespace thinpipe
