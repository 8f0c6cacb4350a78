// metrics.jsonl and timing.jsonl of a coordinated run. They are copies of the store's rows, so interruptions do not
// change a run's metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/result.h"
#include "config/run_config.h"
#include "pipeline/run_folder.h"
#include "run/coordinator/run_store.h"

namespace thinpipe {

class RunLogs {
 public:
  RunLogs(std::filesystem::path folder, const TrainConfig& train) : folder_(std::move(folder)), train_(train) {}

  // Rewrites both files from the store. Called when a coordinator starts and after a rollback.
  Status rewrite(const RunStore& store);
  // Appends the lines that have become complete.
  Status catch_up(const RunStore& store);

 private:
  struct Lines {
    std::vector<std::string> metrics, timing;
  };
  // Returns the complete lines from step `from` on. A step's line waits for the evaluation that follows it.
  Result<Lines> lines_from(const RunStore& store, int64_t from) const;
  void count(const Lines& written);

  std::filesystem::path folder_;
  TrainConfig train_;
  std::optional<LineLog> metrics_, timing_;
  int64_t written_ = 0;  // steps
  bool final_written_ = false;
};

}  // namespace thinpipe
