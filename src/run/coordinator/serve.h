// The coordinator as a process: opens a run's folder, listens, and stays until the run is over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/coordinator/coordinator_service.h"
#include "run/run_files.h"

namespace thinpipe {

struct ServeOptions {
  std::filesystem::path folder;  // of the run, with its config.toml
  // HOST or HOST:PORT each. Default port: the one from last time, else the kernel chooses. Default: all interfaces.
  std::vector<std::string> listen;
  std::vector<std::string> announce;  // more HOST:PORT for invites, for example a forwarded port
  bool open = false;                  // others may join
  std::function<void(const std::vector<std::string>&)> on_ready;  // gets the addresses when it listens
  // Called several times a second while the run is not over, by the thread that called serve_run().
  std::function<void(const control::RunStatus&)> on_tick;
  std::function<void()> on_stop;  // at the first signal
  // The run is complete, and that many members are fetching its model; 0: no longer. A signal ends the wait for them.
  std::function<void(size_t)> on_keepers;
};

// Returns when the run is over, or when SIGINT or SIGTERM has stopped it (the first after a checkpoint, the second at
// once). The caller has blocked both signals in every thread. Throws UserError if the coordinator cannot start.
Finish serve_run(const ServeOptions& options);

}  // namespace thinpipe
