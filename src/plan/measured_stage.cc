#include "plan/measured_stage.h"

#include <ATen/ATen.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "model/fill.h"
#include "model/fixed_table.h"
#include "model/grassmann.h"
#include "model/stage.h"
#include "optim/optimizer.h"

namespace thinpipe {
namespace {

// A line of /proc/self/status, in bytes; 0 if there is none.
uint64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) << 10;
  }
  return 0;
}

// As many distinct tokens as the anchor table is used for, which takes the most memory; else all different.
int64_t distinct_tokens(const RunConfig& config, int64_t vocab) {
  const auto& model = config.model;
  const auto rows = static_cast<double>(config.train.microbatch * config.train.seq_len);
  if (!model.is_subspace() || model.subspace.input != InputForm::kAuto) return vocab;
  double budget =
      distinct_where_direct_is_cheaper(rows, static_cast<double>(model.d), static_cast<double>(model.subspace.rank));
  if (model.positions == Positions::kSinusoidal) budget -= static_cast<double>(config.train.seq_len);
  if (model.subspace.previous == Previous::kTable) budget /= 2;
  return std::clamp<int64_t>(static_cast<int64_t>(budget) - 1, 1, vocab);
}

TokenBatch made_up_tokens(const RunConfig& config, int64_t vocab) {
  const int64_t sequences = config.train.microbatch, length = config.train.seq_len + 1;
  // on the CPU: as the tokens of a corpus are
  const auto ids = at::arange(sequences * length, at::kLong).remainder(distinct_tokens(config, vocab));
  return {ids.view({sequences, length})};
}

at::Tensor made_up_table(const RunConfig& config, int64_t vocab) {
  if (config.model.table.empty()) return {};
  return fill_random(CounterRng(1, "made-up table"), {vocab, config.model.d}, config.model.subspace.anchor_std,
                     at::TensorOptions().dtype(at::kFloat));  // on the CPU: as a table's file is
}

class StageOnTrial {
 public:
  StageOnTrial(const RunConfig& config, int64_t vocab, int64_t number)
      : config_(config),
        range_(blocks_of_stage(config, number)),
        in_flight_(most_in_flight(config, number)),
        tokens_(made_up_tokens(config, vocab)),
        stage_(config.model, vocab, range_, config.train.precision, config.train.seed, at::Device(config.train.device),
               made_up_table(config, vocab)),
        optimizer_(config.optim, config.train.steps, stage_.parameters(), config.train.seed) {
    stage_.recompute_blocks(config.train.recompute == Recompute::kBlock);
    if (auto* side = stage_.subspace()) side->begin_step(config.model.subspace.update_every > 0);
  }

  void run_step() {
    for (int64_t done = 0; done < config_.train.microbatches; done += in_flight_) {
      std::vector<StagePass> passes;
      for (int64_t i = 0; i < in_flight_; ++i) {
        passes.push_back(stage_.forward(tokens_, range_.has_embedding() ? at::Tensor() : stream(), 1e-3));
        passes.back().output.reset();
      }
      for (auto& pass : passes) stage_.backward(std::move(pass), range_.has_head() ? at::Tensor() : stream());
    }
    optimizer_.apply(0, clip_factor(optimizer_.squared_norm(), config_.optim.clip));
    auto* side = stage_.subspace();
    if (side == nullptr || !range_.has_head() || config_.model.subspace.update_every == 0) return;
    side->commit_tap(1.0);
    optimizer_.change_over(stage_.change_over(
        grassmann_step(side->basis(), side->second_moment_or_zeros(), config_.model.subspace.update_rate)));
  }

 private:
  // What a neighbour would send: a stream, or its gradient.
  at::Tensor stream() const {
    const int64_t rows = config_.train.microbatch * config_.train.seq_len;
    return at::full({rows, config_.model.boundary_width()}, 0.01, stage_.options());
  }

  const RunConfig& config_;
  BlockRange range_;
  int64_t in_flight_;
  TokenBatch tokens_;
  Stage stage_;
  Optimizer optimizer_;
};

}  // namespace

MeasuredStage measure_stage(const RunConfig& config, int64_t vocab, int64_t stage) {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const SystemClock clock;
  MeasuredStage measured{.before = status_bytes("VmRSS")};
  StageOnTrial trial(config, vocab, stage);
  measured.built = status_bytes("VmRSS");
  const auto start = clock.now();
  trial.run_step();
  measured.step_s = seconds(clock.now() - start);
  measured.peak = status_bytes("VmHWM");
  return measured;
}

uint64_t measured_part(const MemoryPlan& plan) { return plan.total() - plan.base - plan.queues - plan.checkpoint_copy; }

}  // namespace thinpipe
