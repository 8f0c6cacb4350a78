// The progress line of a run: rewritten in place on a terminal, printed every few seconds elsewhere. Speed and time
// left are those of the last steps.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>

#include "base/clock.h"
#include "base/line.h"

namespace thinpipe {

struct StepReport {
  int64_t step;  // number of finished steps
  double loss;   // mean over the step's tokens, in nats
  int64_t tokens;
  uint64_t bytes = 0;  // over all cuts, both directions
};

struct ProgressPlan {
  int64_t total_steps;
  int64_t cuts = 0;              // 0: nothing crosses a link
  int64_t d = 0;                 // fp32 would send 4d bytes per token, cut and direction
  int64_t first_step = 0;        // steps done before this process started
  uint64_t rate_bits_per_s = 0;  // per cut and direction; 0: unlimited, its use is not shown
};

class Progress {
 public:
  // Writes to `out`; pass `live` if it is a terminal. The clock must outlive this object.
  Progress(ProgressPlan plan, std::FILE* out, bool live, const Clock& clock);
  ~Progress() { out_.end(); }

  void step(const StepReport& report);
  // A validation pass after `step` steps has done so many of its sequences.
  void evaluation(int64_t step, int64_t done, int64_t sequences);
  // Prints a permanent line above the live one.
  void note(const std::string& line) { out_.note(line); }

  // Replaces the step line until the next step, for instance while nothing is heard of the run.
  void wait(const std::string& line);

 private:
  // Step, loss, tokens/s, bytes per token and cut (both ways), use of the link, time left. `detail` counts the parts
  // that may be left out where there is too little room.
  std::string line(const StepReport& report, int detail) const;
  void note_speed(const StepReport& report);
  // The median of the last steps, so that neither a pause nor a wait for somebody counts for long. 0: unknown.
  double seconds_per_token() const;

  ProgressPlan plan_;
  const Clock& clock_;
  LiveLine out_;
  TimePoint last_;
  int64_t last_step_;
  int64_t tokens_per_step_ = 0;
  std::deque<double> recent_;  // seconds per token
};

}  // namespace thinpipe
