// The coordinator as a process: opens (or makes) a run's folder, listens, and stays until the run is over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/coordinator/coordinator_service.h"

namespace thinpipe {

struct ServeOptions {
  std::filesystem::path folder;  // of the run, with its config.toml
  // HOST or HOST:PORT, each; without a port the one of last time, else one that the kernel chooses. None: everywhere.
  std::vector<std::string> listen;
  std::vector<std::string> announce;  // HOST:PORT that invites name beside those, say a forwarded port
  bool open = false;                  // others may join
  std::function<void(const std::vector<std::string>&)> on_ready;  // it listens; where
};

// What a run's folder says about its coordinator, for the commands that talk to it.
struct CoordinatorPlace {
  std::string address;  // for this machine
  int64_t pid = 0;
  std::string run;
};
Result<CoordinatorPlace> read_coordinator_place(const std::filesystem::path& run_folder);

// How a run ended, for whoever started it: outcome.json.
struct RunOutcome {
  bool failed = false;
  bool complete = false;  // all steps done, model.safetensors written
  std::string reason;
  int64_t step = 0;
  int64_t manifest_step = 0;
  double loss = 0;             // NaN when it was not finite
  double validation_loss = 0;  // likewise
  uint64_t step_bytes = 0;
};
Result<RunOutcome> read_outcome(const std::filesystem::path& run_folder);

// Until the run is over, or SIGINT or SIGTERM has stopped it (after a checkpoint; a second one at once). These signals
// must be blocked in every thread. Throws UserError when it cannot start.
Finish serve_run(const ServeOptions& options);

}  // namespace thinpipe
