// The coordinator as a process: opens (or makes) a run's folder, listens, and stays until the run is over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "cluster/coordinator_service.h"

namespace thinpipe {

struct ServeOptions {
  std::filesystem::path folder;      // of the run, with its config.toml
  std::string listen = "127.0.0.1";  // host; with a port, HOST:PORT
};

// What a run's folder says about its coordinator, for the commands that talk to it.
struct CoordinatorPlace {
  std::string address;
  int64_t pid = 0;
};
Result<CoordinatorPlace> read_coordinator_place(const std::filesystem::path& run_folder);

// How a run ended, for whoever started it: outcome.json.
struct RunOutcome {
  bool failed = false;
  bool complete = false;  // all steps done, model.safetensors written
  std::string reason;
  int64_t step = 0;
  int64_t manifest_step = 0;
  double loss = 0;
  double validation_loss = 0;
  uint64_t step_bytes = 0;
};
Result<RunOutcome> read_outcome(const std::filesystem::path& run_folder);

// Until the run is over, or SIGINT or SIGTERM has stopped it (after a checkpoint; a second one at once). These signals
// must be blocked in every thread. Throws UserError when it cannot start.
RunEnd serve_run(const ServeOptions& options);

}  // namespace thinpipe
