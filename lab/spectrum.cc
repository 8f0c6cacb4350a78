#include "lab/spectrum.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace thinpipe {

Spectrum spectrum_of(const at::Tensor& m, int64_t k, bool centred) {
  auto wide = m.cpu().to(at::kDouble);
  if (centred) wide = wide - wide.mean(0, /*keepdim=*/true);
  // The squared singular values are the eigenvalues of the smaller Gram matrix, ascending.
  const auto gram = wide.size(0) < wide.size(1) ? wide.mm(wide.t()) : wide.t().mm(wide);
  const auto squares = at::linalg_eigvalsh(gram).clamp_min(0);
  const double total = squares.sum().item<double>(), largest = squares.max().item<double>();
  if (!(largest > 0)) return {};
  const int64_t n = squares.numel(), count = std::min(k, n);
  return {total / largest, squares.narrow(0, n - count, count).sum().item<double>() / total};
}

}  // namespace thinpipe
