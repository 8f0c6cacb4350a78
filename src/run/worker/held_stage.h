// The stage that a worker holds: weights, optimiser state and, on the first stage, the source of tokens. A Form with
// `restore` makes a new one; every other Form keeps it.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "config/run_config.h"
#include "pipeline/stage_worker.h"
#include "proto/control.pb.h"
#include "run/coordinator_line.h"
#include "run/worker/state_files.h"

namespace thinpipe {

// Where a stage's parts come from.
struct StageSources {
  CoordinatorAccess coordinator;
  control::RunDescription run;
  RunConfig config;               // from the coordinator; the cuts come from the Form
  std::filesystem::path folder;   // the worker's files
  std::filesystem::path corpora;  // prepared corpora on this machine
  WorkProgress* progress = nullptr;
};

class HeldStage {
 public:
  // Fetches the files that the Form names and builds the stage from them, or from the seed if it names none. The Form
  // must have passed WorkerCore's checks.
  static Result<std::unique_ptr<HeldStage>> make(const control::Form& form, const StageSources& sources,
                                                 StateFiles& files);
  ~HeldStage();  // gives its memory back to the system

  StageWorker& worker() { return *worker_; }
  const RunConfig& config() const { return config_; }
  // Null except on the first stage.
  Batches* tokens() { return tokens_.get(); }
  // The units of the model that this stage saves.
  std::vector<std::string> saved_units() const;

 private:
  HeldStage(const control::Form& form, const StageSources& sources);

  RunConfig config_;
  int64_t stage_;
  std::unique_ptr<Batches> tokens_;
  std::unique_ptr<StageWorker> worker_;  // refers to the two above
};

}  // namespace thinpipe
