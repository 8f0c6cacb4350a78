// A worker's side of checkpoints. Saves the units of its stage as files in the worker's folder and sends them to the
// coordinator, during the next steps or before them. Fetches them back, from the local copies if they still exist.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "pipeline/stage_worker.h"
#include "proto/control.grpc.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

struct StateSource {
  CoordinatorAccess coordinator;
  std::string run;
  std::filesystem::path folder;
  CheckpointMode mode = CheckpointMode::kAuto;
  // Called from the writing thread when the state cannot be written to this disk: a retry would not help.
  std::function<void(const std::string&)> on_failure;
  std::function<void()> on_saved;  // called from any thread, for every piece that was written or sent
  // Called during a download, on the caller's thread: bytes received, bytes in all.
  std::function<void(uint64_t, uint64_t)> on_download;
  std::stop_token stop = {};  // ends a download
};

class StateFiles {
 public:
  explicit StateFiles(StateSource source);
  // Gives up the upload under way.
  ~StateFiles();

  // Called between steps. Returns when the next step can no longer change the saved state: it was copied (and a thread
  // writes it), or written and sent. An unreachable coordinator is not an error: retries until the next save.
  Status save(StageWorker& worker, const std::vector<std::string>& units, const control::Save& save);
  // Returns the files by unit, whole and with the right hashes, in the worker's folder. Resumes a download that was
  // interrupted. Gives up a save under way.
  Result<std::map<std::string, SafetensorsFile>> fetch(const std::vector<control::StateFile>& files);
  // Fetches one file to that path.
  Status fetch_to(const control::StateFile& file, const std::filesystem::path& path);
  // Ends the save under way, sent or not, and waits for its thread.
  void give_up();

 private:
  struct Job;
  struct Written;
  std::filesystem::path own_copy(const control::StateFile& file) const;
  Result<Written> write(const Job& job, const UnitState& unit);
  Status write_and_send(const Job& job);
  Status send(const Written& written);
  Status download(const control::StateFile& file, const std::filesystem::path& part);
  void forget_older(const std::vector<Written>& files);

  const StateSource source_;
  CoordinatorLine line_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool give_up_ = false;
  std::set<std::filesystem::path> latest_;  // local copies from the last save or fetch; guarded by mutex_
  std::thread writer_;
};

}  // namespace thinpipe
