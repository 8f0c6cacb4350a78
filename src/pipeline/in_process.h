// Training with every stage on a thread of this process, joined by in-memory links: the coordinator's loop, metrics as
// it goes, validation loss at the end. The stages run the very code that runs over a network.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"
#include "pipeline/batches.h"
#include "pipeline/progress.h"
#include "pipeline/run_folder.h"
#include "pipeline/step_barrier.h"

namespace thinpipe {

// What one committed (or skipped) step was.
struct StepResult {
  int64_t step;  // from 0
  double loss;   // mean over the step's tokens, nats
  double norm;   // of all gradients, before clipping
  bool applied;
  std::vector<StageReport> stages;
};

struct InProcessParts;
class StageWorker;

// The stages, their threads and links. table: T_fixed where the config names one (Stage). Throws UserError when the
// config asks for what cannot be, or when a stage fails.
class InProcessPipeline {
 public:
  InProcessPipeline(const RunConfig& config, int64_t vocab, Batches& batches, const at::Tensor& table = {});
  ~InProcessPipeline();

  StepResult step(int64_t number);
  // Mean loss over the first `windows` validation windows.
  double validate(int64_t windows);

  // Stops the stages; afterwards, their weights and what a model of theirs has of them. Names are unique.
  std::vector<std::pair<std::string, at::Tensor>> finish();
  int64_t parameter_count() const;
  // Between steps: the stage's state may be read and restored.
  StageWorker& worker(size_t stage);

 private:
  std::unique_ptr<InProcessParts> parts_;
};

struct TrainingResult {
  int64_t steps = 0;
  double final_loss = 0;       // training, the last step's
  double validation_loss = 0;  // mean over the whole validation split, nats per token
  int64_t parameters = 0;
};

// Runs the config to its end, or throws UserError (a full disk, a loss that stays non-finite). Writes
// model.safetensors into the run folder when it is done.
TrainingResult train_in_process(const RunConfig& config, int64_t vocab, BatchSource& batches, RunFolder& folder,
                                Progress& progress, const Clock& clock);

}  // namespace thinpipe
