#include "model/grassmann.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t stream) {
  return fill_random(CounterRng(9, stream), shape, 1.0, at::TensorOptions().dtype(at::kDouble));
}

double largest_angle(const at::Tensor& a, const at::Tensor& b) {
  return std::acos(std::min(1.0, at::linalg_svdvals(a.t().mm(b)).min().item<double>()));
}

TEST(Grassmann, ConvergesToTheHiddenSubspaceOfTheGradients) {
  const int64_t d = 40, k = 5;
  const auto hidden = make_basis(77, d, k).u;
  auto basis = make_basis(1, d, k);
  EXPECT_GT(largest_angle(basis.u, hidden), 1.0);
  for (int update = 0; update < 60; ++update) {
    // Gradients with unequal strengths in the hidden directions and a little noise outside.
    const auto strengths = at::linspace(1.0, 2.0, k, at::kDouble);
    const auto g = (random_tensor({64, k}, 100 + static_cast<uint64_t>(update)) * strengths).mm(hidden.t()) +
                   0.01 * random_tensor({64, d}, 1000 + static_cast<uint64_t>(update));
    basis = grassmann_step(basis, g.t().mm(g), 1.0);
    EXPECT_LT((basis.u.t().mm(basis.u) - at::eye(k, at::kDouble)).abs().max().item<double>(), 1e-12);
  }
  EXPECT_EQ(basis.version, 60);
  EXPECT_LT(largest_angle(basis.u, hidden), 0.05);
}

TEST(Grassmann, StepReducesTheEnergyOutside) {
  const auto basis = make_basis(1, 30, 4);
  const auto g = random_tensor({200, 30}, 1) * at::linspace(0.1, 3.0, 30, at::kDouble);
  const auto c = g.t().mm(g);
  const auto outside = [&](const Basis& b) { return (g - g.mm(b.u).mm(b.u.t())).square().sum().item<double>(); };
  EXPECT_LT(outside(grassmann_step(basis, c, 0.1)), outside(basis));
}

TEST(Grassmann, ZeroGradientsKeepTheBasis) {
  const auto basis = make_basis(1, 12, 3);
  EXPECT_TRUE(at::equal(grassmann_step(basis, at::zeros({12, 12}, at::kDouble), 0.5).u, basis.u));
}

TEST(Grassmann, InfiniteGradientsKeepTheBasis) {
  const auto basis = make_basis(1, 12, 3);
  for (const double fault : {double{NAN}, double{INFINITY}}) {
    auto c = at::eye(12, at::kDouble);
    c[3][3] = fault;
    EXPECT_TRUE(at::equal(grassmann_step(basis, c, 0.5).u, basis.u));
  }
}

TEST(Grassmann, SpectralNormIsTheSquareOfTheGradientsLargestSingularValue) {
  // The second spectrum is nearly flat.
  for (const double least : {0.1, 2.999}) {
    const auto g = random_tensor({50, 20}, 3) * at::linspace(least, 3.0, 20, at::kDouble);
    const double largest = at::linalg_svdvals(g).max().item<double>();
    EXPECT_NEAR(spectral_norm(g.t().mm(g)) / (largest * largest), 1.0, 1e-13);
  }
}

TEST(Grassmann, StepMatchesAnExampleComputedByHand) {
  // C has the eigenvalues 3 and 1. From +-e1, R = -+2 (0, 1) / 3; a step of 0.3 gives +-(1, 0.2), normalised.
  const auto c = at::tensor({2.0, 1.0, 1.0, 2.0}, at::kDouble).view({2, 2});
  for (const double sign : {1.0, -1.0}) {
    const auto next = grassmann_step({at::tensor({sign, 0.0}, at::kDouble).view({2, 1}), 4}, c, 0.3);
    EXPECT_EQ(next.version, 5);
    EXPECT_NEAR(next.u[0][0].item<double>(), sign / std::sqrt(1.04), 1e-15);
    EXPECT_NEAR(next.u[1][0].item<double>(), sign * 0.2 / std::sqrt(1.04), 1e-15);
  }
}

TEST(Grassmann, ChangeOverKeepsThePartInBothSubspaces) {
  // U' shares three of U's directions; W in those directions does not change.
  const auto whole = make_basis(5, 20, 6).u;
  const Basis before{whole.narrow(1, 0, 4).contiguous(), 0};
  const Basis after{at::cat({whole.narrow(1, 1, 3), whole.narrow(1, 4, 1)}, 1).contiguous(), 1};
  const auto q = change_of_coordinates(before, after);
  auto a = random_tensor({7, 4}, 2);
  a.select(1, 0).zero_();  // nothing in the direction that is dropped
  EXPECT_LT((a.mm(q).mm(after.u.t()) - a.mm(before.u.t())).abs().max().item<double>(), 1e-13);
  EXPECT_LT(dropped_share(a, q), 1e-7);
  a.select(1, 0).fill_(1.0);
  const double dropped = (a.mm(before.u.t()) - a.mm(q).mm(after.u.t())).norm().item<double>() / a.norm().item<double>();
  EXPECT_NEAR(dropped_share(a, q), dropped, 1e-12);
}

TEST(Grassmann, DiagnosticsMatchTheirDefinitions) {
  const auto before = make_basis(1, 24, 4);
  const auto g = random_tensor({100, 24}, 8);
  const auto c = g.t().mm(g);
  const auto after = grassmann_step(before, c, 0.3);
  const auto report = diagnose(before, after, c);
  ASSERT_EQ(report.angles_rad.size(), 4u);
  EXPECT_NEAR(report.angles_rad.front(), largest_angle(before.u, after.u), 1e-6);
  EXPECT_TRUE(std::is_sorted(report.angles_rad.rbegin(), report.angles_rad.rend()));
  EXPECT_NEAR(report.energy_inside, (g.mm(before.u).square().sum() / g.square().sum()).item<double>(), 1e-12);
  EXPECT_NEAR(report.smallest_gram, 1, 1e-14);
  EXPECT_NEAR(report.largest_gram, 1, 1e-14);
}

}  // namespace
}  // namespace thinpipe
