// What a coordinator leaves in its run's folder for other processes of this machine: where it is, and how the run
// ended. No libtorch: `thinpipe status` and `thinpipe runs` read these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace thinpipe {

// What a run's folder says about its coordinator, for the commands that talk to it.
struct CoordinatorPlace {
  std::string address;  // for this machine
  int64_t pid = 0;
  std::string run;
};
Result<CoordinatorPlace> read_coordinator_place(const std::filesystem::path& run_folder);

// How a run ended, for whoever started it: outcome.json.
struct RunOutcome {
  bool failed = false;
  bool complete = false;  // all steps done, model.safetensors written
  std::string reason;
  int64_t step = 0;
  int64_t manifest_step = 0;
  double loss = 0;             // NaN when it was not finite
  double validation_loss = 0;  // likewise
  uint64_t step_bytes = 0;
};
Result<RunOutcome> read_outcome(const std::filesystem::path& run_folder);

}  // namespace thinpipe
