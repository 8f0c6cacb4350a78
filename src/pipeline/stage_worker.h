// One stage's part in training: it runs the passes of the schedule on its blocks and exchanges packets with its
// neighbours. Read this first (stage_worker.cc: forward, backward, run_step). It does not know whether the neighbours
// are threads or machines, nor who decides that a step is run or committed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "boundary/boundary.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "net/packet_link.h"
#include "optim/optimizer.h"
#include "pipeline/batches.h"
#include "pipeline/payload_digest.h"
#include "pipeline/replicas.h"
#include "pipeline/tensor_file.h"
#include "pipeline/work_progress.h"
#include "proto/control.pb.h"

namespace thinpipe {

struct StagePlace {
  size_t number;
  size_t count;
  BlockRange range;
};

// The stage with index `number` in the config's cuts.
StagePlace stage_place(const RunConfig& config, size_t number);

// "cpu", "cuda", "cuda:N" as a device. Throws UserError if this libtorch does not support it.
at::Device device_of(const TrainConfig& train);

// Compute threads of a stage: train.threads; default: one per core, also if several stages share the machine. Their
// work is uneven, and cores that one stage leaves idle help another.
int threads_for(const RunConfig& config);

// What may cross cut `cut` of the run, for one end of its link.
PacketRules packet_rules(const RunConfig& config, int64_t vocab, int64_t cut);
// The largest payload of a packet across any cut.
size_t max_payload_bytes(const RunConfig& config, int64_t vocab);

// The part of a checkpoint that belongs to one unit of the model.
struct UnitState {
  std::string unit;
  NamedTensors tensors;
  SafetensorsMetadata metadata;
};

class StageWorker {
 public:
  // batches: where the first stage gets its tokens; null on the other stages. table: passed to Stage. Config and
  // batches must outlive this object. One thread at a time may call it.
  StageWorker(const RunConfig& config, int64_t vocab, StagePlace place, Batches* batches, const at::Tensor& table = {});

  // Null at the ends of the pipeline. The links must stay valid until they are replaced.
  void connect(PacketLink* previous, PacketLink* next);
  // The warm-up of 1f1b for the following steps (schedule.h). All stages of a step need the same.
  void set_warmup(std::vector<int64_t> warmup) { warmup_ = std::move(warmup); }

  // Keeps it up to date, for another thread to read. Must outlive this object.
  void show_progress(WorkProgress* progress) { progress_ = progress; }

  // ids_sha256() of the next step's microbatches; empty: not checked. A step with other tokens fails.
  void expect_tokens(std::vector<std::string> hashes) { expected_ids_ = std::move(hashes); }

  // Runs step `step` up to its gradients, from the start: discards what an aborted attempt has left. Errors come from a
  // link, a peer or the token source, and leave the weights unchanged.
  Result<control::Ready> run_step(uint64_t epoch, int64_t step);
  // The sum of the losses over the first `windows` validation windows; 0 on all stages but the last. Calls `on_done`
  // after every microbatch with the number of windows so far.
  Result<double> evaluate(uint64_t epoch, int64_t step, int64_t windows,
                          const std::function<void(int64_t)>& on_done = {});
  // After run_step of the same step: applies it, or (apply = false) only counts it.
  void commit(const control::Commit& commit);

  // The number of committed steps, which is also the next step to run.
  int64_t applied() const { return applied_; }
  int64_t basis_version() const;
  std::string current_basis_hash() const;  // empty in a dense model

  // Everything that a resumed stage needs, by unit, as tensors without copying.
  std::vector<UnitState> state();
  // Restores the state from checked files, by unit, of the same model. On an error the stage stays unchanged.
  Status restore(const std::map<std::string, SafetensorsFile>& files, int64_t step);

  Stage& stage() { return stage_; }

 private:
  // Seconds of the current step.
  struct Times {
    TimePoint began{};
    double forward_s = 0, backward_s = 0, wait_s = 0, total_s = 0;
  };
  class TracedPass;

  // What one side of a cut keeps for its next message, and where a checkpoint has it.
  struct SendingSide {
    Boundary* boundary;
    const char* name;
    std::string unit;
  };
  std::vector<SendingSide> sending_sides();

  void begin(uint64_t epoch, int64_t step);
  Status forward(int64_t microbatch);
  Status backward(int64_t microbatch);
  // The messages that boundaries exchange after the last pass: first upstream, then downstream.
  Status exchange_end_of_step();
  // The last stage's part in a step that updates the subspace (METHOD 3).
  void form_next_basis();
  control::Ready report();

  Result<Activation> tokens(Result<TokenBatch> batch) const;
  Status check_tokens(const TokenBatch& batch, int64_t microbatch) const;
  Result<Activation> receive_activation(PacketKind kind, int64_t microbatch, int64_t sequences);
  Result<at::Tensor> receive_gradient(int64_t microbatch);
  Result<std::string> receive(PacketLink& link, PacketKind kind, int64_t microbatch);
  Status send(PacketLink& link, PacketKind kind, int64_t microbatch, std::span<const std::byte> payload);
  WorkProgress::Waits side_of(const PacketLink& link) const;
  // A pass is done.
  void note_pass() const;
  MessageNumber number(int64_t microbatch) const;
  // Whether a later step of the run updates the basis and so needs the gradients of this one.
  bool moves_basis_later() const;

  const RunConfig& config_;
  const int64_t vocab_;
  StagePlace place_;
  std::vector<int64_t> warmup_;
  std::vector<std::string> expected_ids_;
  Batches* const batches_;
  Stage stage_;
  Optimizer optimizer_;
  std::unique_ptr<Boundary> before_, after_;  // null at the ends
  PacketLink* previous_ = nullptr;
  PacketLink* next_ = nullptr;
  std::unique_ptr<Replicas> replicas_ = alone();
  int64_t applied_ = 0;

  // The current step.
  uint64_t epoch_ = 0;
  int64_t step_ = 0;
  std::map<int64_t, StagePass> passes_;  // by microbatch: what forward saved for backward
  control::Ready report_;
  Times times_;
  // What a side has exchanged with its neighbour.
  struct Exchanged {
    PayloadDigest sent, received;
  };
  Exchanged with_previous_, with_next_;
  WorkProgress* progress_ = nullptr;

  // Of the last commit; part of the next report.
  double dropped_share_ = 0;
  double update_s_ = 0;
};

}  // namespace thinpipe
