// metrics.jsonl and timing.jsonl of a coordinated run. They are copies of the store's rows: however often a run was
// interrupted, its metrics.jsonl is the same as without interruptions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/result.h"
#include "pipeline/run_folder.h"
#include "run/coordinator/run_store.h"

namespace thinpipe {

// When a step's line must wait for the evaluation that follows it.
struct EvaluationRule {
  int64_t steps = 0;       // of the run
  int64_t eval_every = 0;  // 0: never in between

  bool due_after(int64_t committed) const {
    return eval_every > 0 && committed > 0 && committed < steps && committed % eval_every == 0;
  }
};

class RunLogs {
 public:
  RunLogs(std::filesystem::path folder, EvaluationRule rule) : folder_(std::move(folder)), rule_(rule) {}

  // Writes both files from the store again: when a coordinator starts and after a rollback.
  Status rewrite(const RunStore& store);
  // Adds the lines that have become complete.
  Status catch_up(const RunStore& store);

 private:
  struct Lines {
    std::vector<std::string> metrics, timing;
  };
  // The complete lines from step `from` on.
  Result<Lines> lines_from(const RunStore& store, int64_t from) const;
  void count(const Lines& written);

  std::filesystem::path folder_;
  EvaluationRule rule_;
  std::optional<LineLog> metrics_, timing_;
  int64_t written_ = 0;  // steps
  bool final_written_ = false;
};

}  // namespace thinpipe
