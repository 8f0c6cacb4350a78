// thinpipe sample: writes a sample of a model that is still being trained, for the process that watches over the run.
#include <fmt/format.h>

#include "after_training.h"
#include "base/result.h"
#include "commands.h"
#include "model/threads.h"
#include "models/model_files.h"
#include "run/guest.h"
#include "run/samples.h"
#include "store/checkpoints.h"

namespace thinpipe {
namespace {

constexpr int kLowestPriority = 19;
constexpr int kMostTries = 5;

// The run goes on: newer checkpoints may replace this one before it is open.
Sample sample_of_running(const std::string& run, int64_t step) {
  for (int tries = 1;; ++tries) {
    try {
      return {step, sample_of(run, step)};
    } catch (const UserError&) {
      const auto newest = newest_checkpoint(run);
      if (tries == kMostTries || !newest || newest.value().manifest.id.step <= step) throw;
      step = newest.value().manifest.id.step;
    }
  }
}

}  // namespace

void sample(const std::string& run, int64_t step) {
  be_nice(kLowestPriority);
  const OneThread alone;
  add_sample(run, sample_of_running(run, step)).take();
}

}  // namespace thinpipe
