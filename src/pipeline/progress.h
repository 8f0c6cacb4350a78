// What a person sees while a run goes on: one line, rewritten in place on a terminal, printed now and then elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/line.h"

namespace thinpipe {

struct StepReport {
  int64_t step;  // finished steps, from 1
  double loss;   // mean over the step's tokens, in nats
  int64_t tokens;
  uint64_t bytes = 0;  // over all cuts, both directions
};

struct ProgressPlan {
  int64_t total_steps;
  int64_t cuts = 0;              // 0: nothing crosses a link
  int64_t d = 0;                 // what fp32 would send per token, cut and direction is 4d
  int64_t first_step = 0;        // done before this began
  uint64_t rate_bits_per_s = 0;  // of a cut and direction; 0: not limited, its use is not shown
};

class Progress {
 public:
  // Writes to `out`; `live` when it is a terminal. The clock must outlive it.
  Progress(ProgressPlan plan, std::FILE* out, bool live, const Clock& clock);
  ~Progress() { out_.end(); }

  void step(const StepReport& report);
  // A line of its own, above the live one.
  void note(const std::string& line) { out_.note(line); }

  // The line for this report: step, loss, tokens/s, bytes per token and cut (both ways), time left. Public for tests.
  std::string line(const StepReport& report) const;

 private:
  ProgressPlan plan_;
  const Clock& clock_;
  LiveLine out_;
  TimePoint start_;
  int64_t tokens_ = 0;
};

}  // namespace thinpipe
