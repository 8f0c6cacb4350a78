// Shows a shared run to a person, at its coordinator (`thinpipe serve`) or at a machine that has joined: which machines
// are missing, the step line, validation, pauses. It reads the coordinator's status, which a joiner checks here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "base/clock.h"
#include "config/run_config.h"
#include "pipeline/progress.h"
#include "proto/control.pb.h"

namespace thinpipe {

// What differs between the people of a run.
struct RunAudience {
  std::string peer;       // this machine's name in the run; empty: it is the coordinator's
  std::string to_invite;  // follows "2 of 4 machines are here"
  std::string to_resume;  // follows "the run is paused"
};

class RunView {
 public:
  // first_step: steps done before. Writes to `out`; pass `live` if it is a terminal. The clock must outlive it.
  RunView(const RunConfig& config, int64_t first_step, RunAudience audience, std::FILE* out, bool live,
          const Clock& clock);

  void show(const control::RunStatus& status);
  // A line that stays, above the live one.
  void note(const std::string& line) { progress_.note(line); }
  // Nothing has been heard of the run for that long. Not a terminal: a line less and less often.
  void silent(Duration time);

 private:
  void show_steps(const control::RunStatus& status);
  void show_seat(const control::RunStatus& status);
  void show_pause(const control::RunStatus& status);
  void show_wait(const control::RunStatus& status);
  // What the run waits for; empty if it does not wait.
  std::string waits_for(const control::RunStatus& status) const;

  const TrainConfig train_;
  const int64_t stages_;
  const RunAudience audience_;
  const bool live_;
  const Clock& clock_;
  Progress progress_;
  int64_t step_;
  bool paused_ = false;
  bool first_ = true;             // nothing was said about waiting, and the run has not worked yet
  std::optional<int64_t> stage_;  // -1: none; not set: not known yet
  std::string waits_, said_;      // the newest reason to wait, and the one that was printed
  TimePoint waits_since_{};
  Duration next_silence_{};
};

}  // namespace thinpipe
