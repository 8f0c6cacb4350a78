// One stage's part in training: runs the schedule's actions on its blocks and talks to its neighbours through packets.
// Nothing in here knows whether the neighbours are threads or machines, nor who decides that a step is run or
// committed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "boundary/boundary.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "net/packet_link.h"
#include "optim/optimizer.h"
#include "pipeline/batches.h"
#include "pipeline/schedule.h"
#include "pipeline/stage_report.h"
#include "pipeline/tensor_file.h"

namespace thinpipe {

struct StagePlace {
  size_t number;
  size_t count;
  BlockRange range;
};

// Place `number` in the config's cuts.
StagePlace stage_place(const RunConfig& config, size_t number);

// "cpu", "cuda", "cuda:N" as a device, or UserError when this libtorch cannot.
at::Device device_of(const TrainConfig& train);

// Compute threads of a stage: train.threads, or one each where there are several stages.
int threads_for(const RunConfig& config);

// gpipe, or 1f1b with these depths per stage (empty: those that cover links that take no time).
Schedule schedule_for(const RunConfig& config, const std::vector<int64_t>& warmup);

// What may cross cut `cut` of the run, for the end of its link.
PacketRules packet_rules(const RunConfig& config, int64_t vocab, int64_t cut, RunTag run);

// What a checkpoint holds of one unit of the model.
struct UnitState {
  std::string unit;
  NamedTensors tensors;
  SafetensorsMetadata metadata;
};

class StageWorker {
 public:
  // batches: used by the first stage only. table: the Stage's. The references must outlive it. One thread calls
  // everything.
  StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, Batches& batches, const at::Tensor& table = {});

  // Null at the ends of the pipeline. They must stay until they are replaced.
  void connect(PacketLink* previous, PacketLink* next);
  // The schedule of the steps from here on (see schedule_for). All stages of a step need the same.
  void set_warmup(const std::vector<int64_t>& warmup);

  // Runs step `step` up to its gradients, from the start: what an aborted attempt has left is dropped. An error is a
  // link's, a peer's or the token source's, and leaves the weights untouched.
  Result<StageReport> run_step(uint64_t epoch, int64_t step);
  // The mean over the first `windows` windows of the validation split is the last stage's loss_sum / tokens.
  Result<StageReport> evaluate(uint64_t epoch, int64_t step, int64_t windows);
  // After run_step of the same step.
  void commit(const CommitStep& commit);

  // Steps committed so far; the next one to run.
  int64_t applied() const { return applied_; }
  int64_t basis_version() const;
  std::string current_basis_hash() const;  // empty in a dense model

  // Everything a resumed stage needs, by unit, as tensors that are not copied.
  std::vector<UnitState> state();
  // Takes over the state in checked files, by unit, of the same model. An error leaves the stage as it was.
  Status restore(const std::map<std::string, SafetensorsFile>& files, int64_t step);

  Stage& stage() { return stage_; }

 private:
  Status act(const Action& action, int64_t step, StageReport& report);
  Status send(PacketLink& link, PacketKind kind, int64_t step, int64_t microbatch, std::vector<std::byte> payload,
              int64_t sequences);
  Result<std::vector<std::byte>> receive(PacketLink& link, PacketKind kind, int64_t step, int64_t microbatch,
                                         StageReport& report);
  Result<ForwardContent> receive_forward(PacketKind kind, int64_t step, int64_t microbatch, int64_t sequences,
                                         StageReport& report);
  Result<ForwardContent> input_of(int64_t step, int64_t microbatch);
  // On a step that moves the subspace: the last stage forms the next basis, and it travels upstream (METHOD 3).
  Status pass_basis(int64_t step, StageReport& report);
  bool moves_basis(int64_t step) const;
  // Whether a step of the run after `step` moves the basis, and so needs the gradients of this one.
  bool moves_basis_after(int64_t step) const;
  void begin_pass(uint64_t epoch, int64_t step);
  void end_pass(StageReport& report);

  const RunConfig& config_;
  StagePlace place_;
  std::vector<int64_t> warmup_;  // that schedule_ was made for
  Schedule schedule_;
  Batches& batches_;
  Stage stage_;
  Optimizer optimizer_;
  std::unique_ptr<Boundary> before_, after_;  // null at the ends
  PacketLink* previous_ = nullptr;
  PacketLink* next_ = nullptr;
  uint64_t epoch_ = 0;
  int64_t applied_ = 0;

  // Microbatches under way: what has arrived and is not used yet, and what forward left for backward.
  std::map<int64_t, ForwardContent> arrived_;
  std::map<int64_t, at::Tensor> arrived_grads_;
  std::map<int64_t, StagePass> passes_;
  std::map<int64_t, at::Tensor> grads_out_;
  std::optional<Basis> next_basis_;
  uint64_t sent_before_ = 0, sent_before_back_ = 0;  // payload bytes when the pass began
  double dropped_share_ = 0;
  double update_s_ = 0;  // of the last commit
};

}  // namespace thinpipe
