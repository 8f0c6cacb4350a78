// How long a step takes if every stage has a core of its own: compute times are measured here, packets have their real
// sizes, and links have a given rate and delay. `bench wan` and `lab bandwidth` compare such times with real steps.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "lab/schedule_bound.h"
#include "model/stage.h"
#include "text/prepare.h"

namespace thinpipe {

// CPU seconds of this thread: what the work would take on a core of its own, also while others use the machine.
double thread_cpu_s();

struct StageTimes {
  double forward_s, backward_s, update_s;
};
// Of stage `number` for one microbatch, packing included, and of one update: the least of a few tries on one thread.
StageTimes time_stage(const RunConfig& config, int64_t vocab, int64_t number, const TokenBatch& batch);

class StepTime {
 public:
  // Measures forward, backward and update of a first, a middle and a last stage, on one thread and in its CPU time, so
  // that other work on the machine hardly matters. `config` must outlive it and have at least two stages.
  StepTime(const RunConfig& config, const PreparedCorpus& corpus);

  // Seconds of a step. rate: in bits per second; 0: links without limit, which also take no time for the packet itself.
  double over(double rate, double delay_s) const;
  // The warm-up of 1f1b over such links (pipeline/schedule.h).
  std::vector<int64_t> warmup(double rate, double delay_s) const;

 private:
  const RunConfig& config_;
  int64_t vocab_;
  ScheduleTimes times_;
  double update_s_ = 0;
};

}  // namespace thinpipe
