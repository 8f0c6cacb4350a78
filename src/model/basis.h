// U, the orthonormal basis of the shared subspace S (METHOD 1). Every node has the same bits: the first version is made
// from the run's seed, later ones arrive with a commit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace thinpipe {

struct Basis {
  at::Tensor u;         // (d, k) float64, U^T U = I
  int64_t version = 0;  // counts change-overs

  int64_t d() const { return u.size(0); }
  int64_t k() const { return u.size(1); }
};

// Version 0: Gram-Schmidt, twice, on random columns. Uses only +, *, / and sqrt in a fixed order, and no BLAS or
// LAPACK, whose bits differ between machines. Needs k <= d.
Basis make_basis(uint64_t seed, int64_t d, int64_t k);

// SHA-256 over the version and the bytes of U, so that peers can compare their bases.
std::string basis_hash(const Basis& basis);

}  // namespace thinpipe
