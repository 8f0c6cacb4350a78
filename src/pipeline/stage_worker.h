// One stage's part in training: runs the schedule's actions, talks to its neighbours through links and to the
// coordinator through the barrier. Nothing in here knows whether the neighbours are threads or machines.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "boundary/boundary.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "net/link.h"
#include "optim/optimizer.h"
#include "pipeline/batches.h"
#include "pipeline/schedule.h"
#include "pipeline/step_barrier.h"

namespace thinpipe {

// Where a stage stands, and what it holds on to; links are null at the ends of the pipeline and must outlive it.
struct StagePlace {
  size_t number;
  size_t count;
  BlockRange range;
  Link* previous;
  Link* next;
};

// "cpu", "cuda", "cuda:N" as a device, or UserError when this libtorch cannot.
at::Device device_of(const TrainConfig& train);

class StageWorker {
 public:
  // batches: read by the first stage only. All arguments must outlive it. One thread calls everything.
  StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, const Schedule& schedule,
              const BatchSource& batches);

  // Serves commands until Stop (then returns ok), or until a link, a peer or the barrier fails.
  Status run(StepBarrier& barrier);

  Stage& stage() { return stage_; }

 private:
  Result<StageReport> run_step(int64_t step);
  Status act(const Action& action, int64_t step, StageReport& report);
  Result<StageReport> evaluate(int64_t windows);
  void commit(const CommitStep& commit);

  Status receive_forward(int64_t microbatch, int64_t sequences);
  // On a step that moves the subspace: the last stage forms the next basis, and it travels upstream (METHOD 3).
  Status pass_basis(StageReport& report);
  bool moves_basis(int64_t step) const;
  void count_bytes(StageReport& report);
  TokenBatch on_device(TokenBatch batch) const;

  const RunConfig& config_;
  StagePlace place_;
  const Schedule& schedule_;
  const BatchSource& batches_;
  Stage stage_;
  Optimizer optimizer_;
  std::unique_ptr<Boundary> before_, after_;  // null at the ends

  // Microbatches under way: what has arrived and is not used yet, and what forward left for backward.
  std::map<int64_t, ForwardContent> arrived_;
  std::map<int64_t, at::Tensor> arrived_grads_;
  std::map<int64_t, StagePass> passes_;
  std::map<int64_t, at::Tensor> grads_out_;
  std::optional<Basis> next_basis_;
  uint64_t counted_forward_ = 0, counted_backward_ = 0;
  double dropped_share_ = 0;
};

}  // namespace thinpipe
