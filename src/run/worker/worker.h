// A worker: one process that holds one stage of a run. It follows the coordinator's orders, step by step, and keeps its
// weights until the process ends (docs/control.md). Threads: the caller's thread computes; ControlClient's listens and
// interrupts it; each link has its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/run_config.h"
#include "net/link.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

class CappedLines;

// What this machine has done for the run. Any thread may read it.
struct WorkerShare {
  std::atomic<int64_t> stage = -1;                           // the last one held
  std::atomic<int64_t> steps = 0;                            // whose outcome it has applied
  std::atomic<uint64_t> bytes_sent = 0, bytes_received = 0;  // to and from neighbouring stages
  std::atomic<int64_t> compute_us = 0;                       // forwards and backwards
};

struct WorkerOptions {
  CoordinatorAccess coordinator;  // its certificate names this worker, also after a restart
  std::filesystem::path folder;   // the worker's files; may vanish with it
  // Where neighbours dial: HOST or HOST:PORT each. Default port: the kernel chooses.
  std::vector<std::string> listen = {"127.0.0.1"};
  std::vector<std::string> announce;                    // more HOST:PORT where neighbours may dial
  control::Machine machine;                             // its speed and memory, if measured
  bool keeps_model = false;                             // tells the coordinator that fetch_model() follows
  int most_threads = 0;                                 // compute threads that its owner allows; 0: any number
  CappedLines* lines = nullptr;                         // caps what it sends and receives; null: no caps
  std::stop_token leave;                                // on request: leaves when the coordinator can spare it
  std::function<void(uint64_t, uint64_t)> on_download;  // bytes of its state received, bytes in all
  // For tests: wraps the links of every epoch.
  std::function<std::unique_ptr<Link>(std::unique_ptr<Link>)> wrap_link;
  // Called with the run and its config before the work begins; the result lives until the next call, or as long as the
  // worker. Shared: opaque here.
  std::function<std::shared_ptr<void>(const control::RunDescription&, const RunConfig&)> on_run;
  // How long to wait for a coordinator that does not answer.
  Duration patience = std::chrono::minutes(10);
  // Wait as long for a coordinator that was stopped before the run was over.
  bool outlives_stop = false;
  WorkerShare* share = nullptr;  // must outlive the worker
};

// Returns why the coordinator said Stop, in its own words (empty: the person left before it answered), or the error
// that ended the work. Throws UserError for what a person can fix.
Result<std::string> run_worker(const WorkerOptions& options);

}  // namespace thinpipe
