// One stage's part in training: runs the schedule's passes on its blocks and talks to its neighbours through packets.
// This is the page to read first (stage_worker.cc: forward, backward, run_step). Nothing in here knows whether the
// neighbours are threads or machines, nor who decides that a step is run or committed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "boundary/boundary.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "net/packet_link.h"
#include "optim/optimizer.h"
#include "pipeline/batches.h"
#include "pipeline/replicas.h"
#include "pipeline/tensor_file.h"
#include "proto/control.pb.h"

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

// What may cross cut `cut` of the run, for the end of its link.
PacketRules packet_rules(const RunConfig& config, int64_t vocab, int64_t cut, RunTag run);

// Messages that a link must be able to hold in each direction: what a step sends, and its end (schedule.h).
int64_t queue_capacity(const TrainConfig& train);

// What a checkpoint holds of one unit of the model.
struct UnitState {
  std::string unit;
  NamedTensors tensors;
  SafetensorsMetadata metadata;
};

class StageWorker {
 public:
  // batches: where the first stage gets its tokens; null on the others. table: the Stage's. Config and batches must
  // outlive it. One thread at a time calls everything.
  StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, Batches* batches, const at::Tensor& table = {});

  // Null at the ends of the pipeline. They must stay until they are replaced.
  void connect(PacketLink* previous, PacketLink* next);
  // 1f1b's depths for the steps from here on (schedule.h). All stages of a step need the same.
  void set_warmup(std::vector<int64_t> warmup) { warmup_ = std::move(warmup); }

  // Runs step `step` up to its gradients, from the start: what an aborted attempt has left is dropped. An error is a
  // link's, a peer's or the token source's, and leaves the weights untouched.
  Result<control::Ready> run_step(uint64_t epoch, int64_t step);
  // The sum of the losses over the first `windows` windows of the validation split; 0 on all stages but the last.
  Result<double> evaluate(uint64_t epoch, int64_t step, int64_t windows);
  // After run_step of the same step: applies it, or (apply = false) counts it and changes nothing.
  void commit(const control::Commit& commit);

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
  // Seconds of the step under way.
  struct Times {
    double forward_s = 0, backward_s = 0, wait_s = 0, total_s = 0;
  };

  void begin(uint64_t epoch, int64_t step);
  Status forward(int64_t microbatch);
  Status backward(int64_t microbatch);
  // What boundaries tell each other behind the last pass: upstream, then downstream.
  Status exchange_end_of_step();
  // On a step that moves the subspace, the last stage's part (METHOD 3).
  void form_next_basis();
  control::Ready report();

  Result<Activation> tokens(Result<TokenBatch> batch) const;
  Result<Activation> receive_activation(PacketKind kind, int64_t microbatch, int64_t sequences);
  Result<at::Tensor> receive_gradient(int64_t microbatch);
  Result<std::vector<std::byte>> receive(PacketLink& link, PacketKind kind, int64_t microbatch);
  Status send(PacketLink& link, PacketKind kind, int64_t microbatch, std::vector<std::byte> payload);
  MessageNumber number(int64_t microbatch) const;
  // Whether a step of the run after the present one moves the basis, and so needs the gradients of this one.
  bool moves_basis_later() const;

  const RunConfig& config_;
  StagePlace place_;
  std::vector<int64_t> warmup_;
  Batches* const batches_;
  Stage stage_;
  Optimizer optimizer_;
  std::unique_ptr<Boundary> before_, after_;  // null at the ends
  PacketLink* previous_ = nullptr;
  PacketLink* next_ = nullptr;
  std::unique_ptr<Replicas> replicas_ = alone();
  int64_t applied_ = 0;

  // The step under way.
  uint64_t epoch_ = 0;
  int64_t step_ = 0;
  std::map<int64_t, StagePass> passes_;  // by microbatch: what forward left for backward
  control::Ready report_;
  Times times_;

  // Of the last commit; the next report tells.
  double dropped_share_ = 0;
  double update_s_ = 0;
};

}  // namespace thinpipe
