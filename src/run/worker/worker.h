// A worker: one process that holds one stage of a run. It follows the coordinator's orders, step by step, and keeps its
// weights until the process ends (docs/control.md). Threads: the caller's thread computes; ControlClient's listens and
// interrupts it; each link has its own.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "net/link.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

class CappedLines;

struct WorkerOptions {
  CoordinatorAccess coordinator;  // its certificate names this worker, also after a restart
  std::filesystem::path folder;   // the worker's files; may vanish with it
  // Where neighbours dial: HOST or HOST:PORT each. Default port: the kernel chooses.
  std::vector<std::string> listen = {"127.0.0.1"};
  std::vector<std::string> announce;                    // more HOST:PORT where neighbours may dial
  control::Machine machine;                             // its speed and memory, if measured
  int most_threads = 0;                                 // compute threads that its owner allows; 0: any number
  CappedLines* lines = nullptr;                         // caps what it sends and receives; null: no caps
  std::stop_token leave;                                // on request: leaves when the coordinator can spare it
  std::function<void(uint64_t, uint64_t)> on_download;  // bytes of its state received, bytes in all
  // For tests: wraps the links of every epoch.
  std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)> wrap_link;
  // Called with the run's id and config before the work begins; the result lives as long as the work. Shared: opaque
  // here.
  std::function<std::shared_ptr<void>(const std::string&, const RunConfig&)> on_run;
};

// Returns ok when the coordinator says Stop, or the error that ended it. Throws UserError for what a person can fix.
Status run_worker(const WorkerOptions& options);

}  // namespace thinpipe
