// Schedules as data: the order in which a stage runs the forward and backward passes of a step's microbatches
// (docs/schedules.md). A stage receives a pass's input directly before it and sends its output directly after it, so
// the list of passes is complete. It is made before the step starts; a stage decides nothing while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

struct Pass {
  bool forward;
  int64_t microbatch;

  bool operator==(const Pass&) const = default;
};

// The passes of stage `stage` of `stages` in a step of M microbatches.
//   gpipe  all forwards, then all backwards.
//   1f1b   warmup[stage] forwards (at most M), then alternately one forward and one backward, then the other backwards.
// warmup has one entry >= 0 per stage and must not increase from stage to stage: a stage that waits for more forwards
// than the one before it gives would wait for ever. Empty: p-1-i, enough for links that take no time. gpipe ignores it.
// Both directions run in the order 0..M-1 on every stage, so every schedule sums gradients in the same order: gpipe and
// 1f1b give the same bits. A step sends at most M messages per link and direction; with queues of M + 1 messages (the
// last for the end of the step) no send ever waits.
std::vector<Pass> passes(ScheduleKind kind, size_t stage, int64_t stages, int64_t microbatches,
                         const std::vector<int64_t>& warmup);

// The warm-up that fills the time a microbatch needs from stage i to the last stage and back:
//   w_i = min(M, p-1-i + ceil(2 (p-1-i) hop_s / compute_s))
// compute_s: forward and backward of one microbatch on a typical stage, positive. hop_s: delay and transfer of one
// message on a typical link, not negative.
std::vector<int64_t> covering_warmup(int64_t stages, int64_t microbatches, double compute_s, double hop_s);

}  // namespace thinpipe
