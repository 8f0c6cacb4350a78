// A worker's side of checkpoints: the units of its stage to files in the worker's own folder and from there to the
// coordinator, beside the next steps or before them; and back, from its own copies if it still has them.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
  // Called, from the writing thread, when a state cannot be written here: no further attempt would help.
  std::function<void(const std::string&)> on_failure;
  // Called during a download, on the caller's thread: bytes that are there, of so many.
  std::function<void(uint64_t, uint64_t)> on_download;
};

class StateFiles {
 public:
  explicit StateFiles(StateSource source);
  // A file on its way is given up.
  ~StateFiles();

  // Between steps. Returns when the state is safe from the next step: copied (and written by a thread of its own), or
  // written and sent. A failure to reach the coordinator is no error: it is tried until the next save.
  Status save(StageWorker& worker, const std::vector<std::string>& units, const control::Save& save);
  // The files by unit, whole and with the right hashes, kept in the worker's folder. What an interrupted download has
  // left is used.
  Result<std::map<std::string, SafetensorsFile>> fetch(const std::vector<control::StateFile>& files);
  // The same for one file that is to lie there.
  Status fetch_to(const control::StateFile& file, const std::filesystem::path& path);
  // Ends a save under way, sent or not, and waits for its thread.
  void give_up();

 private:
  struct Job;
  struct Written;
  std::filesystem::path own_copy(const control::StateFile& file) const;
  Result<Written> write(const Job& job, const UnitState& unit);
  Status write_and_send(const Job& job);
  Status send(const Written& written);
  Status download(const control::StateFile& file, const std::filesystem::path& part);
  void forget_older(size_t keep);

  const StateSource source_;
  CoordinatorLine line_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool give_up_ = false;
  std::thread writer_;
};

}  // namespace thinpipe
