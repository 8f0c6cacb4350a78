// What a stage says of a pass it has finished.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "subspace/grassmann.h"

namespace thinpipe {

// Ends a step: every gradient times grad_factor is applied, or (apply = false) the step is as if it had not been.
struct CommitStep {
  int64_t step;
  bool apply;
  double grad_factor;
};

struct StageReport {
  double loss_sum = 0;      // last stage
  double squared_norm = 0;  // of this stage's gradients
  // Whether what the neighbours sent held numbers that are not finite; by this the one that did is found.
  bool nonfinite_from_previous = false;
  bool nonfinite_from_next = false;
  uint64_t forward_bytes = 0;             // payload sent to the next stage in this pass
  uint64_t backward_bytes = 0;            // and to the previous one
  std::string basis_hash;                 // of the next basis, when this step moves it: ready means holding it
  std::optional<BasisDiagnostics> basis;  // of that move, from the last stage
  double dropped_share = 0;               // of the last commit's change-over, the largest over this stage's matrices
  double forward_s = 0, backward_s = 0;   // compute, over all microbatches
  double update_s = 0;                    // of the commit before this step
  double wait_s = 0;                      // for messages of the neighbours
  double total_s = 0;                     // of the pass
};

}  // namespace thinpipe
