// The model of a simulation. A unit's state is a number in a hash chain: the next one depends on the state, on what
// crossed the cuts in this step and on the clipping factor. So whoever computes on another history, or applies a commit
// twice, never or with other inputs, has another number for ever. Also the same model a second time, as one list of
// committed steps: what must come out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "pipeline/step.h"
#include "proto/control.pb.h"

namespace thinpipe::sim {

using UnitStates = std::map<std::string, uint64_t>;

uint64_t mix(uint64_t a, uint64_t b);

// Three stages of one block each, 15 steps, a checkpoint every 4, an evaluation every 6.
// A run of one owner would stop after a few failures; this one has patience.
RunConfig sim_config(bool open);
constexpr int64_t kVocab = 8;

std::vector<std::string> units_of_stage(const RunConfig& config, int64_t stage);
std::vector<std::string> units_saved_by_stage(const RunConfig& config, int64_t stage);
UnitStates first_states(const std::vector<std::string>& units);

// What a stage sends in a step.
uint64_t forward_payload(const UnitStates& stage, uint64_t from_previous, int64_t step);
uint64_t backward_payload(const UnitStates& stage, uint64_t forward, uint64_t from_next, int64_t step);
// What the first stage gets instead of a payload from the previous one, and the last instead of one from the next.
uint64_t token_payload(int64_t step);
uint64_t loss_payload(uint64_t forward);

// One stage's work on one step.
struct StageStep {
  int64_t stage = 0, stages = 1, step = 0;
  uint64_t received_forward = 0, sent_forward = 0, received_backward = 0, sent_backward = 0;

  control::Ready report() const;
  // The states after the commit.
  UnitStates applied_to(const UnitStates& states, double factor) const;
};

// A unit's file: a safetensors file with all tensors that the model's description asks for. The state is in the first.
std::string unit_file(const RunConfig& config, const std::string& unit, int64_t step, uint64_t state,
                      int64_t basis_version = 0);
Result<uint64_t> state_in(std::string_view file);

// What the committed steps of one coordinator give.
class History {
 public:
  explicit History(RunConfig config);

  int64_t committed() const { return static_cast<int64_t>(rows_.size()); }
  const std::vector<CommitRow>& rows() const { return rows_; }
  // All units after that many committed steps.
  const UnitStates& states(int64_t committed) const { return states_.at(static_cast<size_t>(committed)); }
  UnitStates states_of_stage(int64_t committed, int64_t stage) const;
  // Adds a row that a coordinator has committed. Returns what is wrong with it, compared with what the stages must have
  // reported; empty: nothing.
  std::string add(const CommitRow& row);
  void roll_back(int64_t committed);

 private:
  std::vector<StageStep> run_step() const;

  RunConfig config_;
  std::vector<CommitRow> rows_;
  std::vector<UnitStates> states_;
};

}  // namespace thinpipe::sim
