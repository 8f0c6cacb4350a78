// Finite differences in float64, and comparisons of tensors that print how far apart they are.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "model/fill.h"

namespace thinpipe {

inline at::TensorOptions doubles() { return at::TensorOptions().dtype(at::kDouble); }

inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t stream, const at::TensorOptions& options = doubles()) {
  return fill_random(CounterRng(20260101, stream), shape, 1.0, options);
}

// ||a - b|| / ||b||
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const double scale = std::max(1e-300, b.norm().item<double>());
  return (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>() / scale;
}

// dL/dx for every element, by central differences. Truncation is O(h^2) ~ 1e-10 and rounding ~ 1e-16 / h = 1e-11
// relative to L, so gradients of order one agree to about 1e-8.
inline at::Tensor finite_difference(at::Tensor x, const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  auto gradient = at::empty_like(x);
  const auto flat = x.view({-1});
  auto out = gradient.view({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double value = flat[i].item<double>();
    flat[i].fill_(value + kStep);
    const double above = loss();
    flat[i].fill_(value - kStep);
    const double below = loss();
    flat[i].fill_(value);
    out[i].fill_((above - below) / (2 * kStep));
  }
  return gradient;
}

constexpr double kFiniteDifferenceTolerance = 1e-7;

}  // namespace thinpipe
