// A stage of a subspace model: the initial values of A and E (METHOD 2), and that a change of basis keeps the function
// if W lies in both subspaces (METHOD 3).
#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/numeric.h"
#include "model/small_models.h"

namespace thinpipe {
namespace {

bool is_coordinates(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kCoordinates || parameter.kind == ParameterKind::kEmbeddingCoordinates;
}

// ---- initial values ----

constexpr int64_t kManyTokens = 200;

ModelConfig wide_model() {
  auto config = small_model(ModelMode::kSubspace);
  config.d = 64;
  config.blocks = 2;
  config.mlp_width = 96;
  config.init_std = 0.05;
  config.subspace.rank = 16;
  config.subspace.anchor_groups.clear();
  return config;
}

double root_mean_square(const at::Tensor& x) { return std::sqrt(x.square().mean().item<double>()); }

// The sample std of N uniform numbers scatters by sqrt(0.2 / N): 1.4 % for the smallest here, a1 with N = 1024.
constexpr double kScatter = 0.05;

TEST(SubspaceStage, SinusoidalPositionsByDefaultAreSmallerThanTheAnchors) {
  auto config = wide_model();
  config.positions = Positions::kSinusoidal;
  auto stage = uncut_stage(config, kManyTokens);
  const auto rows = stage.subspace()->anchor_rows(index_anchors(config, at::arange(64, at::kLong), 64));
  const auto& parts = rows.front().parts;  // tokens, then positions
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_LT(root_mean_square(parts[1].e), root_mean_square(parts[0].e));
}

TEST(SubspaceStage, CoordinatesStartWithTheStdOfWTimesSqrtDOverK) {
  const auto config = wide_model();
  auto stage = uncut_stage(config, kManyTokens);
  const double factor = 2.0;                                   // sqrt(64 / 16)
  const double output_std = config.init_std / std::sqrt(4.0);  // 2 L output projections add to the stream
  const std::vector<std::pair<std::string, double>> stds = {
      {"blocks.0.a1", output_std}, {"blocks.0.a2", output_std}, {"embedding_coordinates", config.init_std}};
  for (const auto& [name, std] : stds) {
    const auto* parameter = stage.parameters().find(name);
    ASSERT_NE(parameter, nullptr) << name;
    EXPECT_EQ(parameter->full_width, config.d) << name;
    EXPECT_NEAR(root_mean_square(parameter->value), factor * std, kScatter * factor * std) << name;
    // The purpose: the entries of A U^T have the std intended for W.
    const auto wide = parameter->value.mm(stage.subspace()->u().t());
    EXPECT_NEAR(root_mean_square(wide), std, kScatter * std) << name;
  }
  EXPECT_NEAR(root_mean_square(stage.parameters().find("blocks.1.wp1")->value), output_std, kScatter * output_std);
}

TEST(SubspaceStage, ZeroInitStartsOutputCoordinatesAtZeroAndNothingElse) {
  auto config = wide_model();
  const auto names_at_zero = [&] {
    auto stage = uncut_stage(config, kManyTokens);
    std::vector<std::string> names;
    for (const auto& parameter : stage.parameters().all()) {
      if (parameter.value.abs().max().item<double>() == 0) names.push_back(parameter.name);
    }
    return names;
  };
  EXPECT_EQ(names_at_zero(), (std::vector<std::string>{}));
  config.subspace.zero_init = true;
  EXPECT_EQ(names_at_zero(), (std::vector<std::string>{"blocks.0.a1", "blocks.0.a2"}));
}

// ---- the change-over ----

constexpr int64_t kFewTokens = 19;

std::vector<ModelCase> cases() {
  std::vector<ModelCase> all;
  for (const auto form : {InputForm::kTable, InputForm::kDirect}) {
    for (auto model : subspace_models({0, 1})) {
      model.config.subspace.input = form;
      all.push_back({model.name + (form == InputForm::kTable ? ", table" : ", direct"), model.config});
    }
  }
  return all;
}

// Drops the first direction of the basis, adds one orthogonal to all of it, and rotates the result.
Basis sharing_all_but_the_first_direction(const Basis& basis) {
  const int64_t d = basis.d(), k = basis.k();
  auto fresh = random_tensor({d, 1}, 1);
  for (int pass = 0; pass < 2; ++pass) fresh = fresh - basis.u.mm(basis.u.t().mm(fresh));
  const auto columns = at::cat({basis.u.narrow(1, 1, k - 1), fresh / fresh.norm()}, 1);
  const auto turn = std::get<0>(at::linalg_qr(random_tensor({k, k}, 2)));
  return {columns.mm(turn).contiguous(), basis.version + 1};
}

void set_along_first_direction(Stage& stage, double value) {
  for (auto& parameter : stage.parameters().all()) {
    if (is_coordinates(parameter)) parameter.value.select(1, 0).fill_(value);
  }
}

// The relative change of the loss when the stage changes to that basis.
double loss_change(Stage& stage) {
  const TokenBatch batch{at::arange(2 * 9, at::kLong).mul(7).remainder(kFewTokens).view({2, 9})};
  const double before = stage.evaluate(batch, {}).loss_sum;
  stage.change_over(sharing_all_but_the_first_direction(stage.subspace()->basis()));
  return std::abs(stage.evaluate(batch, {}).loss_sum / before - 1);
}

TEST(SubspaceStage, ChangeOverKeepsTheFunctionIfWLiesInBothSubspaces) {
  for (const auto& [name, config] : cases()) {
    auto stage = uncut_stage(config, kFewTokens);
    set_along_first_direction(stage, 0.0);
    EXPECT_LT(loss_change(stage), 1e-12) << name;
    EXPECT_EQ(stage.subspace()->basis().version, 1) << name;
  }
}

TEST(SubspaceStage, ChangeOverDropsThePartOutsideTheNewSubspace) {
  for (const auto& [name, config] : cases()) {
    auto stage = uncut_stage(config, kFewTokens);
    set_along_first_direction(stage, 0.3);
    EXPECT_GT(loss_change(stage), 1e-4) << name;
  }
}

TEST(SubspaceStage, ChangeOverMultipliesOnlyCoordinatesByTheReturnedQ) {
  auto stage = uncut_stage(small_model(ModelMode::kSubspace), kFewTokens);
  std::vector<at::Tensor> before;
  for (const auto& parameter : stage.parameters().all()) before.push_back(parameter.value.clone());
  const auto old = stage.subspace()->basis();
  const auto next = sharing_all_but_the_first_direction(old);
  stage.subspace()->set_second_moment(at::eye(old.d(), doubles()));
  const auto q = stage.change_over(next);
  EXPECT_FALSE(stage.subspace()->second_moment().defined());  // it is collected again for the next update
  EXPECT_LT(relative_error(q, old.u.t().mm(next.u)), 1e-14);
  size_t index = 0;
  for (const auto& parameter : stage.parameters().all()) {
    const auto& was = before[index++];
    if (is_coordinates(parameter)) {
      EXPECT_LT(relative_error(parameter.value, was.mm(old.u.t()).mm(next.u)), 1e-14) << parameter.name;
    } else {
      EXPECT_TRUE(at::equal(parameter.value, was)) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace thinpipe
