// How exact a cut is: one step of the pipeline as it trains (in_process.h) - its stages, schedule, packs and links -
// against the uncut d-wide reference (reference_model.h). Everything in float64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

struct ExactnessError {
  double loss = 0;           // relative
  double gradient = 0;       // largest ||difference||_F / ||reference||_F over the parameters; dA against (H^T G) U
  std::string worst;         // the parameter it belongs to
  double second_moment = 0;  // ||difference||_F / ||reference||_F of C at the tap (METHOD 3); 0 in a dense model
};

// Whether `error` takes the place of `worst`, the largest so far. Not a number is worse than any, and stays.
bool worse(double error, double worst);

// The first step of the config, which must be in float64 and not move the basis in that step, on made-up tokens. Gains
// and trainable anchors are moved off their first values, so that a forgotten factor shows.
ExactnessError measure_exactness(const RunConfig& config);

struct ExactnessCase {
  std::string name;
  RunConfig config;
};
// The models `thinpipe lab exactness` checks: positions, grouped queries, qk-norm, uneven cuts, tails, anchors, norms,
// and both forms of reading the stream.
std::vector<ExactnessCase> exactness_cases();

}  // namespace thinpipe
