// The steps of a run: decides what comes between two steps, commits or skips a step from its stages' reports, and says
// when to try again after trouble. A value and free functions; the core (coordinator_core.h) passes the time in.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "pipeline/step.h"
#include "proto/control.pb.h"
#include "run/core/effects.h"
#include "run/core/run_rules.h"
#include "run/core/saving.h"

namespace thinpipe {

struct Steps {
  uint64_t epoch = 0;       // numbers the attempts to work together; only grows
  uint64_t generation = 0;  // the epoch in which the run began or last returned to a checkpoint
  int64_t committed = 0;    // steps; also the number of the next one
  int64_t basis_version = 0;
  uint64_t revision = 0;        // random, of this start of the coordinator
  uint64_t state_revision = 0;  // of the start that made the last commit, or returned to a checkpoint after it
  std::optional<CommitRow> last_commit;
  std::set<int64_t> skipped;      // steps
  std::set<int64_t> evaluations;  // how many steps were committed before each
  std::optional<double> validation_loss, final_loss;

  // What the seats' holders have reported in this epoch about the step or evaluation under way.
  std::set<Seat> formed;
  std::map<Seat, control::Ready> ready;
  std::map<Seat, double> evaluated;  // sum of the losses
  int64_t windows_done = 0;          // by the last stage, in the evaluation under way

  int64_t failures = 0;  // epochs in a row that ended in trouble without a commit
  std::optional<TimePoint> retry_at;

  std::deque<double> step_times_s;  // from the order to the commit, of the last steps

  // The costs of the last committed step.
  double step_s = 0;
  double microbatch_s = 0;  // mean over stages and microbatches: forward and backward
  double wait_share = 0;    // share of the time spent waiting for messages
  uint64_t step_bytes = 0;
};

void forget_reports(Steps& steps);
// Begins a new epoch. With `beginning.all_restore`, forgets later steps and evaluations.
void begin_epoch(Steps& steps, const Beginning& beginning, int64_t basis_version);

// What to do between two steps.
enum class Move {
  kEvaluate,
  kRunStep,
  kRegroup,  // begin a new epoch
  kFinish,
  kWait,  // for a checkpoint, or for the end of a pause
};
struct NextMove {
  Move move;
  bool save = false;  // ask for a checkpoint of this step first
  std::string why;
};
// What people and machines want besides the next step.
struct Wishes {
  bool stop = false;
  bool pause = false;
  bool leave = false;                  // the holder of a seat wants to leave
  std::optional<std::string> regroup;  // why a new epoch would help
};
NextMove decide_next(const Steps& steps, const Saving& saving, const Wishes& wishes, const RunRules& rules);

// Commits or skips the step that all seats have reported; returns the row to write. `names`: who holds each seat, in
// order; the row of a skipped step says who sent numbers that are not finite. An error ends the run.
Result<CommitRow> commit_step(Steps& steps, const RunRules& rules, const std::vector<std::string>& names,
                              Duration since_start);
// Says why the run should stop if too many steps in a row were skipped.
std::optional<std::string> too_many_skipped(const Steps& steps, const RunRules& rules);
// The stages that may be behind numbers that are not finite in the step that all seats have reported: who sent the
// first of them, and the neighbour that says so. Empty if all numbers are finite.
std::vector<size_t> behind_nonfinite(const Steps& steps);
// The stages whose reports do not agree on what crossed the cut between them: both ends of every such cut.
std::vector<size_t> behind_changed_payloads(const Steps& steps);
// Says what is wrong with a report that no honest worker sends; nullopt: nothing.
std::optional<std::string> why_impossible(const control::Ready& report);
// Ends the evaluation that all seats have reported.
PersistEvaluation finish_evaluation(Steps& steps, const RunRules& rules);

// Counts an epoch that ended in trouble. Sets the time of the retry; returns why the run should end after too many.
std::optional<std::string> count_failure(Steps& steps, const RunRules& rules, const std::string& what, TimePoint now);

// Orders for the stages. path_hop_s: measured time of a message on the slowest path; 1f1b covers it.
control::ToWorker run_order(const Steps& steps, const RunRules& rules, double path_hop_s);
control::ToWorker evaluate_order(const Steps& steps, const RunRules& rules);
control::ToWorker save_order(const Steps& steps);

// For a worker that reported a step ready and did not hear the outcome: returns whether that step was committed.
bool missed_last_commit(const Steps& steps, const control::Holding& holding);
// What a seat's holder has after it has formed, and whether `holding` is that.
control::Holding holding_of(const Steps& steps, const RunRules& rules, Seat seat);
bool keeps_state(const Steps& steps, const std::optional<control::Holding>& holding, Seat seat);

}  // namespace thinpipe
