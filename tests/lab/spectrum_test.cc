// Stable rank and energy of known matrices, and of random ones against the singular values themselves.
#include "lab/spectrum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

const auto kDouble = at::TensorOptions().dtype(at::kDouble);

TEST(Spectrum, OfKnownMatrices) {
  const auto identity = spectrum_of(at::eye(8, kDouble), 2);
  EXPECT_NEAR(identity.stable_rank, 8, 1e-12);
  EXPECT_NEAR(identity.top_k, 0.25, 1e-12);
  const auto rank_one = spectrum_of(at::ones({20, 5}, kDouble), 3);
  EXPECT_NEAR(rank_one.stable_rank, 1, 1e-12);
  EXPECT_NEAR(rank_one.top_k, 1, 1e-12);
  const auto diagonal = spectrum_of(at::diag(at::tensor({3.0, 2.0, 1.0}, kDouble)), 1);
  EXPECT_NEAR(diagonal.stable_rank, 14.0 / 9, 1e-12);
  EXPECT_NEAR(diagonal.top_k, 9.0 / 14, 1e-12);
  EXPECT_EQ(spectrum_of(at::zeros({4, 3}, kDouble), 2).stable_rank, 0);
}

TEST(Spectrum, Centred_IgnoresAMeanThatAllRowsShare) {
  const auto noise = fill_random(CounterRng(1, "noise"), {200, 16}, 1.0, kDouble);
  const auto shifted = noise + 100;
  EXPECT_LT(spectrum_of(shifted, 4).stable_rank, 1.01);
  EXPECT_NEAR(spectrum_of(shifted, 4, true).stable_rank, spectrum_of(noise, 4, true).stable_rank, 1e-8);
}

TEST(Spectrum, AgreesWithTheSingularValuesOfTallAndWideMatrices) {
  for (const auto& shape : {std::vector<int64_t>{50, 12}, {12, 50}}) {
    const auto matrix = fill_random(CounterRng(2, "matrix"), shape, 1.0, kDouble);
    const auto squares = at::linalg_svdvals(matrix).square();
    const auto found = spectrum_of(matrix, 5);
    EXPECT_NEAR(found.stable_rank, (squares.sum() / squares.max()).item<double>(), 1e-10);
    EXPECT_NEAR(found.top_k, (squares.slice(0, 0, 5).sum() / squares.sum()).item<double>(), 1e-12);
  }
}

}  // namespace
}  // namespace thinpipe
