// A worker's side of checkpoints: the stage's state to a file in the worker's own folder and from there to the
// coordinator, beside the next steps or before them; and back, from its own copy if it still has it.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "cluster/coordinator_line.h"
#include "config/run_config.h"
#include "pipeline/stage_worker.h"
#include "proto/control.grpc.pb.h"

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
  Status save(StageWorker& worker, int64_t stage, const control::Save& save);
  // The file, whole and with the right hash, in the worker's folder. What an interrupted download has left is used.
  Result<std::filesystem::path> fetch(const control::StateFile& file);
  // The same for a file that is to lie there.
  Status fetch_to(const control::StateFile& file, const std::filesystem::path& path);
  // Ends a save under way, sent or not, and waits for its thread.
  void give_up();

 private:
  struct Job;
  // The file in the worker's own folder.
  Result<std::filesystem::path> write(const Job& job, control::StateFile& file);
  Status write_and_send(const Job& job);
  Status send(const Job& job, const control::StateFile& file, const std::filesystem::path& path);
  Status download(const control::StateFile& file, const std::filesystem::path& part);
  void forget_older(const std::filesystem::path& newest);

  const StateSource source_;
  CoordinatorLine line_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool give_up_ = false;
  std::thread writer_;
};

}  // namespace thinpipe
