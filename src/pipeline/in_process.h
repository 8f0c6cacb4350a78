// Trains with every stage on a thread of this process, connected by in-memory links. Does the coordinator's work,
// writes metrics, and computes the validation loss at the end. The stages run the same code as over a network.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
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
class StageThread;
class StageWorker;

struct StepResult : CommitRow {
  std::vector<control::Ready> stages;
};

// The stages and their links. Every call below runs all stages in parallel and returns when all are done; it sets the
// number of compute threads of the calling thread, which runs the last stage. If a stage fails, it ends the others and
// the pipeline: throws UserError("stage 2: ...") for errors of a link, a peer or the token source, and rethrows the
// stage's own exceptions.
class InProcessPipeline {
 public:
  // table: T_fixed if the config names one (Stage). Throws UserError if the config cannot be run. shaped: the links are
  // as slow as [link] says; otherwise they take no time.
  InProcessPipeline(const RunConfig& config, int64_t vocab, Batches& batches, const at::Tensor& table = {},
                    bool shaped = false);
  ~InProcessPipeline();

  // Runs and commits the step, or skips it if it is not finite.
  StepResult step(int64_t number);
  // Mean loss over the first `windows` validation windows.
  double validate(int64_t windows, const std::function<void(int64_t)>& on_done = {});

  // The weights of all stages, and the basis of a subspace model. Names are unique.
  std::vector<std::pair<std::string, at::Tensor>> weights() const;
  int64_t parameter_count() const;
  // The stage's state may be read and restored.
  StageWorker& worker(size_t stage) { return *workers_[stage]; }

 private:
  template <class Work>
  auto on_all_stages(const Work& work);
  void end_all(const std::string& reason);

  RunConfig config_;
  std::vector<std::unique_ptr<PacketLink>> down_, up_;  // per cut: the end of the earlier stage, that of the later one
  std::vector<std::unique_ptr<StageWorker>> workers_;
  std::vector<std::unique_ptr<StageThread>> threads_;  // of all stages but the last
};

struct TrainingResult {
  int64_t steps = 0;
  double final_loss = 0;       // training loss of the last step
  double validation_loss = 0;  // mean over the whole validation split, nats per token
  int64_t parameters = 0;
};

// Runs the config to its end, or throws UserError (a full disk, a loss that stays non-finite). Then writes
// model.safetensors into the run folder.
TrainingResult train_in_process(const RunConfig& config, int64_t vocab, CorpusBatches& batches, RunFolder& folder,
                                Progress& progress, const Clock& clock);

}  // namespace thinpipe
