// A step's line in metrics.jsonl: what the run was, the same bits however often it was interrupted and wherever it ran;
// and in timing.jsonl: how long it took.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "config/run_config.h"
#include "pipeline/stage_report.h"

namespace thinpipe {

struct StepOutcome {
  int64_t step;  // from 0
  double loss;   // mean over the step's tokens, nats
  double norm;   // of all gradients, before clipping
  bool applied;
};

nlohmann::ordered_json metrics_line(const RunConfig& config, const StepOutcome& outcome,
                                    const std::vector<StageReport>& stages);
nlohmann::ordered_json timing_line(int64_t step, double elapsed_s, const std::vector<StageReport>& stages);

}  // namespace thinpipe
