// How exact a cut is: compares one step of the training pipeline (in_process.h), with its stages, schedule, packs and
// links, with the uncut d-wide reference (reference_model.h). Everything in float64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

struct ExactnessError {
  double loss = 0;           // relative
  double gradient = 0;       // maximum of ||difference||_F / ||reference||_F over the parameters; dA against (H^T G) U
  std::string worst;         // the parameter with that maximum
  double second_moment = 0;  // ||difference||_F / ||reference||_F of C at the tap (METHOD 3); 0 in a dense model
};

// Whether `error` replaces `worst`, the largest so far. NaN is worse than any number, and stays.
bool worse(double error, double worst);

// The first step of the config on made-up tokens. The config must be in float64 and must not update the basis in that
// step. Gains and trainable anchors are moved away from their initial values, so that a missing factor shows.
ExactnessError measure_exactness(const RunConfig& config);

struct ExactnessCase {
  std::string name;
  RunConfig config;
};
// The models that `thinpipe lab exactness` checks: positions, grouped queries, qk-norm, uneven cuts, tails, anchors,
// norms, and both forms of reading the stream.
std::vector<ExactnessCase> exactness_cases();

}  // namespace thinpipe
