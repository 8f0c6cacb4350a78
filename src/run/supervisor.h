// A whole run on this machine: starts the coordinator and one worker per stage as processes, restarts those that are
// killed, shows one progress line, and stops them when asked (ctrl-C: after a checkpoint; twice: at once). The workers
// may also be on other machines (remote_workers.h).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"
#include "proto/control.pb.h"
#include "run/coordinator/serve.h"
#include "run/dashboard_child.h"
#include "run/remote_workers.h"

namespace thinpipe {

struct LocalRun {
  std::filesystem::path program;  // thinpipe itself
  std::filesystem::path folder;   // of the run, with its config.toml
  RunConfig config;
  bool live = false;        // standard output is a terminal
  std::FILE* out = stdout;  // where to print for the person
  DashboardWish dashboard = {.listen = "off"};
  RemoteRun remote = {};
  // Asked now and then: a reason means that the run is to stop with a checkpoint, as after ctrl-C. May be empty.
  std::function<std::optional<std::string>()> stop_wanted = {};
};

// Returns when the run has ended; the outcome is not complete if the person interrupted it. Throws UserError with the
// reason if the run fails. Blocks SIGINT, SIGTERM and SIGCHLD in this process, and leaves them blocked.
RunOutcome run_locally(const LocalRun& run, const Clock& clock);

// Picks the coordinator's events to show to the person, each once. All events are in the run's store. Those that it
// holds when this object is made belong to earlier starts of the run and are not shown again.
class EventNotes {
 public:
  // Call it before the coordinator starts: nobody may have the run's store open.
  explicit EventNotes(const std::filesystem::path& run_folder);
  // The number of the newest event that was seen; ask the coordinator for those after it.
  int64_t last() const { return last_; }
  std::vector<std::string> of(const control::RunStatus& status);

 private:
  int64_t last_ = 0;
};

}  // namespace thinpipe
