// A finished step: the rule that decides it from the reports of its stages, and its lines in metrics.jsonl (the
// results; the same bits wherever the run was and however often it was interrupted) and timing.jsonl (how long it
// took). Used by runs in one process and by coordinators. Needs no libtorch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "base/result.h"
#include "config/run_config.h"
#include "proto/control.pb.h"

namespace thinpipe {

int64_t tokens_per_step(const TrainConfig& train);
// Whether a validation pass follows that many committed steps. The one at the end of the run is another matter.
bool evaluates_after(const TrainConfig& train, int64_t committed);

// Whether the stages note every pass of that step, from 0, for the timeline: in every tenth.
constexpr bool traces_step(int64_t step) { return step % 10 == 0; }

// One committed (or skipped) step, as decided and as stored by a coordinator.
struct CommitRow {
  int64_t step = 0;  // from 0
  uint64_t epoch = 0;
  uint64_t revision = 0;  // of the coordinator that decided it
  bool apply = true;  // false: the loss or its gradient was not finite; the step counts but changes nothing
  double grad_factor = 1;
  double squared_norm = 0;  // of all gradients, before clipping
  double loss = 0;          // mean over the step's tokens, nats
  int64_t basis_version = 0;
  std::string metrics;  // JSON, a line of metrics.jsonl without a validation loss
  std::string timing;   // JSON, a line of timing.jsonl
  std::string why;      // one sentence for people; not stored
};

// `reports`: of all stages for one step of `tokens` tokens, in stage order. Sums are computed in that order, so they do
// not depend on which stage was first. An error ends the run: the stages disagree on the next basis. Does not set
// basis_version and the lines.
Result<CommitRow> decide(int64_t tokens, double clip, std::span<const control::Ready> reports);

// The message to the stages.
control::Commit commit_message(const CommitRow& row);

// Payload bytes of the step over all cuts and both directions.
uint64_t bytes_of(std::span<const control::Ready> reports);

nlohmann::ordered_json metrics_line(const RunConfig& config, const CommitRow& row,
                                    std::span<const control::Ready> reports);
nlohmann::ordered_json timing_line(int64_t step, double elapsed_s, std::span<const control::Ready> reports);

}  // namespace thinpipe
