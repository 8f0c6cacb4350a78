// Training with every stage on a thread of this process, joined by in-memory links: the coordinator's loop, metrics as
// it goes, validation loss at the end. The stages run the very code that runs over a network.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"
#include "pipeline/batches.h"
#include "pipeline/progress.h"
#include "pipeline/run_folder.h"
#include "pipeline/step.h"

namespace thinpipe {

class PacketLink;
class StageWorker;

struct StepResult : CommitRow {
  std::vector<control::Ready> stages;
};

// The stages and their links. Every call below runs all stages at once and returns when all are done; it sets the
// number of compute threads of the calling thread, which runs the last stage. A stage that fails ends the others with
// its reason, and the pipeline with them: UserError("stage 2: ...") for what a link, a peer or the token source did,
// the stage's own exception as it was.
class InProcessPipeline {
 public:
  // table: T_fixed where the config names one (Stage). Throws UserError when the config asks for what cannot be.
  InProcessPipeline(const RunConfig& config, int64_t vocab, Batches& batches, const at::Tensor& table = {});
  ~InProcessPipeline();

  // Runs the step and commits it, or skips it where it is not finite.
  StepResult step(int64_t number);
  // Mean loss over the first `windows` validation windows.
  double validate(int64_t windows);

  // The stages' weights and what a model of theirs has of them. Names are unique.
  std::vector<std::pair<std::string, at::Tensor>> weights() const;
  int64_t parameter_count() const;
  // The stage's state may be read and restored.
  StageWorker& worker(size_t stage) { return *workers_[stage]; }

 private:
  template <class Work>
  auto on_all_stages(const Work& work);
  void end_all(const std::string& reason);

  RunConfig config_;
  std::vector<std::unique_ptr<PacketLink>> down_, up_;  // per cut: the earlier stage's end, the later one's
  std::vector<std::unique_ptr<StageWorker>> workers_;
};

struct TrainingResult {
  int64_t steps = 0;
  double final_loss = 0;       // training, the last step's
  double validation_loss = 0;  // mean over the whole validation split, nats per token
  int64_t parameters = 0;
};

// Runs the config to its end, or throws UserError (a full disk, a loss that stays non-finite). Writes
// model.safetensors into the run folder when it is done.
TrainingResult train_in_process(const RunConfig& config, int64_t vocab, CorpusBatches& batches, RunFolder& folder,
                                Progress& progress, const Clock& clock);

}  // namespace thinpipe
