// Samples of the model's text while it is trained (train.sample_every). The stages hold only parts of the model, so a
// sample comes from a checkpoint: a process beside the run (`thinpipe sample`), with one thread and the lowest
// priority, writes it to samples.jsonl. Whatever happens to it, the run goes on and computes the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "run/child_process.h"

namespace thinpipe {

// Whether a checkpoint of `step` is the first one after another `every` steps. last: the step of the checkpoint before.
bool sample_is_due(int64_t every, int64_t last, int64_t step);

class SampleChild {
 public:
  // `program`: thinpipe itself.
  SampleChild(std::filesystem::path program, std::filesystem::path run_folder, const TrainConfig& train);

  // Call it often. checkpoint_step: that of the newest checkpoint; negative: there is none. Starts at most one process
  // at a time; skips samples that are due meanwhile. Returns the sample that was written, or, once, why there is none.
  std::optional<std::string> tend(int64_t checkpoint_step);
  // The run is over: gives up the sample under way.
  void end() { process_.reset(); }

 private:
  std::optional<std::string> news();

  const std::filesystem::path program_, folder_;
  const int64_t every_, steps_;
  int64_t seen_ = 0;  // the newest checkpoint that was looked at, now or at an earlier start of the run
  int64_t step_ = 0;  // of the process
  std::optional<ChildProcess> process_;
  bool complained_ = false;
};

}  // namespace thinpipe
