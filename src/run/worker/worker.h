// A worker: one process that holds one stage of a run. It does what the coordinator says, step by step, and keeps its
// weights through everything but its own end (docs/control.md). Threads: the caller's computes; ControlClient's listens
// and interrupts it; each link has its own.
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

struct WorkerOptions {
  CoordinatorAccess coordinator;  // whose certificate says who this is; the same after a restart
  std::filesystem::path folder;   // its own files; may vanish with it
  // Where neighbours dial: HOST or HOST:PORT, each; without a port the kernel chooses one.
  std::vector<std::string> listen = {"127.0.0.1"};
  std::vector<std::string> announce;                    // HOST:PORT beside those
  control::Machine machine;                             // what it can do, if measured
  std::stop_token leave;                                // requested: leaves when the coordinator can spare it
  std::function<void(uint64_t, uint64_t)> on_download;  // bytes of its state that are here, of so many
  // A seam for tests: what the links of every epoch are wrapped in.
  std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)> wrap_link;
  // Called with the run's config before the work begins; what it returns lives as long as the work. Shared: opaque
  // here.
  std::function<std::shared_ptr<void>(const RunConfig&)> on_run;
};

// Until the coordinator says stop: ok. An error is what ended it instead. Throws UserError for what a person can mend.
Status run_worker(const WorkerOptions& options);

}  // namespace thinpipe
