// A whole run on this machine: starts the coordinator and one worker per stage as processes, starts again what was
// killed, shows one progress line, and stops them when asked (ctrl-C: after a checkpoint; twice: at once).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"
#include "proto/control.pb.h"
#include "run/coordinator/serve.h"

namespace thinpipe {

struct LocalRun {
  std::filesystem::path program;  // thinpipe itself
  std::filesystem::path folder;   // of the run, with its config.toml
  RunConfig config;
  bool live = false;        // standard output is a terminal
  std::FILE* out = stdout;  // where the person looks
};

// An outcome that is not complete: the person interrupted the run. Throws UserError with the reason when the run fails.
// SIGINT, SIGTERM and SIGCHLD are blocked in this process from here on.
RunOutcome run_locally(const LocalRun& run, const Clock& clock);

// The coordinator's events that a person is told, each once. All of them are in the run's store; those that it holds
// when this object is made belong to earlier starts of the run and are not told again.
class EventNotes {
 public:
  // Nobody may have the run's store open.
  explicit EventNotes(const std::filesystem::path& run_folder);
  // The number of the newest event that was seen: what to ask the coordinator for.
  int64_t last() const { return last_; }
  std::vector<std::string> of(const control::RunStatus& status);

 private:
  int64_t last_ = 0;
};

}  // namespace thinpipe
