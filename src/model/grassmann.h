// Moving the subspace (METHOD 3): from the gradients' second moment C at the tap to a better basis, and what the change
// costs. Pure functions over tensors; the optimiser's moments change over in optim/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/basis.h"

namespace thinpipe {

// U' = qf(U - alpha R), R = -2 (I - UU^T) C U / ||C||_2, thin QR with positive diagonal; version + 1. A C that is zero
// or not finite gives U back.
Basis grassmann_step(const Basis& basis, const at::Tensor& c, double alpha);

// Largest eigenvalue of a symmetric positive semidefinite matrix, to rounding; NaN when the matrix is not finite. Power
// iteration is hardly cheaper and, where the leading eigenvalues are close, off by per cents.
double spectral_norm(const at::Tensor& c);

struct BasisDiagnostics {
  int64_t version;                     // of the new basis
  std::vector<double> angles_rad;      // (k) principal angles between the old and the new subspace, largest first
  double energy_inside;                // share of tr C that lies in the old subspace
  double smallest_gram, largest_gram;  // eigenvalues of U'^T U': must stay 1
};
BasisDiagnostics diagnose(const Basis& before, const Basis& after, const at::Tensor& c);

// Q = U^T U' (k, k): coordinates change over by A <- A Q.
at::Tensor change_of_coordinates(const Basis& before, const Basis& after);

// ||W (I - U'U'^T)|| / ||W|| for W = A U^T: what the change-over of A drops.
double dropped_share(const at::Tensor& a, const at::Tensor& q);

}  // namespace thinpipe
