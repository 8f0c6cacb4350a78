// Schedules as data: what each stage does in one step, in which order, written down before it runs (docs/schedules.md).
// One executor runs any of them. The generator proves, for every interleaving of the stages, that the step completes
// and how many messages a queue can ever hold; the links are sized by that, so no stage waits for room to send.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

enum class ActionKind { kReceiveForward, kForward, kSendForward, kReceiveBackward, kBackward, kSendBackward };

// "receive-forward", "forward", ...: for messages and traces.
std::string_view to_string(ActionKind kind);

struct Action {
  ActionKind kind;
  int64_t microbatch;

  bool operator==(const Action&) const = default;
};

// What one stage does in a step. A receive directly precedes and a send directly follows the compute it belongs to; the
// first stage has no receive-forward and send-backward, the last no send-forward and receive-backward.
struct StagePlan {
  std::vector<Action> actions;
  int64_t max_in_flight = 0;      // most microbatches whose forward has run and whose backward is still to come
  int64_t forward_capacity = 0;   // messages the queue to the next stage must hold; 0: nothing is sent that way
  int64_t backward_capacity = 0;  // messages the queue to the previous stage must hold; 0: nothing is sent that way
};

// Both directions run the microbatches in the order 0..M-1 on every stage. So message k of every queue is microbatch k,
// and gradients are summed in the same order whatever the schedule: gpipe and 1f1b give the same bits.
struct Schedule {
  std::vector<StagePlan> stages;
  int64_t microbatches = 0;  // M
  bool has_backward = true;  // false: evaluation; nothing is kept for a backward, max_in_flight is 0
};

// All forwards, then all backwards.
Schedule make_gpipe(int64_t stages, int64_t microbatches);

// Stage i runs warmup[i] forwards (at most M), then one forward and one backward in turn, then the backwards that are
// left. warmup must have one entry >= 0 per stage and must not increase from a stage to the next: a stage that waits
// for more forwards than the one before it gives would wait for ever.
Schedule make_1f1b(int64_t stages, int64_t microbatches, const std::vector<int64_t>& warmup);

// Forwards only, for evaluation.
Schedule make_forward_only(int64_t stages, int64_t microbatches);

// Of one microbatch, on a typical stage and link.
struct PipelineTimes {
  double forward_s;
  double backward_s;
  double delay_s;     // of a link, one way
  double transfer_s;  // message size / link rate
};

// The warm-up that fills the time a microbatch needs from stage i to the last stage and back:
//   w_i = min(M, p-1-i + ceil(2 (p-1-i)(delay + transfer) / (forward + backward)))
// memory_cap: most microbatches any stage may hold in flight, 0 for no limit. It is kept even below the p-1-i of the
// classic 1f1b: all stages are cut to the same depth, so the depths still do not increase, which is all that deadlock
// freedom needs; stages only wait longer. forward + backward must be positive, the other times not negative.
std::vector<int64_t> covering_warmup(int64_t stages, int64_t microbatches, const PipelineTimes& times,
                                     int64_t memory_cap);

// Exact peaks over every interleaving of the stages, not bounds.
struct ScheduleProof {
  std::vector<int64_t> peak_in_flight;       // (p)    microbatches held by stage i
  std::vector<int64_t> peak_forward_queue;   // (p-1)  messages sent by stage i and not yet taken by stage i+1
  std::vector<int64_t> peak_backward_queue;  // (p-1)  messages sent by stage i+1 and not yet taken by stage i
};

// Proves that every stage runs every microbatch once per direction, in order, with its sends and receives in place;
// that no interleaving deadlocks; and that none finds a queue of the announced capacity full. Else says what is wrong
// and where. The proof is for one pass that starts with empty queues: a stage must not begin the next before all have
// ended this one (the commit of a step sees to that).
Result<ScheduleProof> prove(const Schedule& schedule);

struct LinkTimes {
  double transfer_s;  // a direction of a link carries one message at a time
  double delay_s;     // from the end of the transfer to the arrival
};

struct ScheduleTimes {
  std::vector<double> forward_s;    // (p)
  std::vector<double> backward_s;   // (p)    ignored when the schedule has no backward
  std::vector<LinkTimes> forward;   // (p-1)  from stage i to i+1
  std::vector<LinkTimes> backward;  // (p-1)  from stage i+1 to i; ignored likewise
};

// Seconds from the start of the step to the end of its last action when every stage starts at once, has a core of its
// own, and never waits but for a message: the critical path that a measured step is compared with.
double schedule_bound_s(const Schedule& schedule, const ScheduleTimes& times);

}  // namespace thinpipe
