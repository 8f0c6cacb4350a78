// How many directions a matrix really uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace thinpipe {

struct Spectrum {
  double stable_rank = 0;  // |M|_F^2 / |M|_2^2: n for n equal singular values, 1 for one
  double top_k = 0;        // share of |M|_F^2 in the k largest singular values
};

// M: (rows, cols), any real type; computed in float64. `centred`: after subtracting the mean row, because a mean that
// all rows share makes any matrix look like one of rank 1. A matrix of zeros has 0 and 0.
Spectrum spectrum_of(const at::Tensor& m, int64_t k, bool centred = false);

}  // namespace thinpipe
