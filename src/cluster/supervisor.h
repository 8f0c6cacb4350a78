// A whole run on this machine: starts the coordinator and one worker per stage as processes, starts again what was
// killed, shows one progress line, and stops them when asked (ctrl-C: after a checkpoint; twice: at once).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/clock.h"
#include "config/run_config.h"

namespace thinpipe {

struct LocalRun {
  std::filesystem::path program;  // thinpipe itself
  std::filesystem::path folder;   // of the run, with its config.toml
  RunConfig config;
  bool live = false;        // standard output is a terminal
  std::FILE* out = stdout;  // where the person looks
};

struct LocalRunEnd {
  bool complete = false;     // all steps done, model.safetensors written
  bool interrupted = false;  // by the person
  int64_t step = 0;
  int64_t resumable_step = 0;  // of the last checkpoint; 0: the beginning
  double validation_loss = 0;
};

// Throws UserError with the reason when the run fails. SIGINT, SIGTERM and SIGCHLD are blocked in this process from
// here on.
LocalRunEnd run_locally(const LocalRun& run, const Clock& clock);

}  // namespace thinpipe
