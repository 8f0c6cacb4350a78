// A worker: one process that holds one stage of a run. It does what the coordinator says, step by step, and keeps its
// weights through everything but its own end (docs/control.md). Threads: the caller's computes; ControlClient's listens
// and interrupts it; each link has its own.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace thinpipe {

struct WorkerOptions {
  std::string coordinator;           // address
  std::string name;                  // who this is to the coordinator; the same after a restart
  std::filesystem::path folder;      // its own files; may vanish with it
  std::string listen = "127.0.0.1";  // where neighbours dial; the kernel chooses the port
};

// Until the coordinator says stop: ok. An error is what ended it instead. Throws UserError for what a person can mend.
Status run_worker(const WorkerOptions& options);

}  // namespace thinpipe
