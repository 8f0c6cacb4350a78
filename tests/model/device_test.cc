// Whole models on a device that is not the CPU: every tensor is made and stays there, and the ATen path that such a
// device takes gives what the fused CPU kernels give.
#include <ATen/ATen.h>

#include <vector>

#include "model/fixed_table.h"
#include "model/kernels/ops.h"
#include "model/numeric.h"
#include "model/small_models.h"
#include "support/foreign_device.h"

namespace thinpipe {
namespace {

using test::foreign_device;
using test::is_foreign;

constexpr int64_t kVocab = 23;

std::vector<ModelCase> device_cases() {
  std::vector<ModelCase> all{{"dense", small_model(ModelMode::kDense)}};
  all.push_back({"dense, qk norm", small_model(ModelMode::kDense)});
  all.back().config.qk_norm = true;
  all.push_back({"dense, sinusoidal", small_model(ModelMode::kDense)});
  all.back().config.positions = Positions::kSinusoidal;
  for (const auto& model : subspace_models({0, 1})) {
    for (const auto form : {InputForm::kDirect, InputForm::kTable}) {
      all.push_back({model.name + (form == InputForm::kTable ? ", table" : ", direct"), model.config});
      all.back().config.subspace.input = form;
    }
  }
  all.push_back({"subspace, sinusoidal", small_model(ModelMode::kSubspace)});
  all.back().config.positions = Positions::kSinusoidal;
  return all;
}

Stage stage_on(const at::Device& device, const ModelConfig& config, BlockRange range, Precision precision) {
  return Stage(config, kVocab, range, precision, /*seed=*/7, device);
}

at::Tensor some_tokens() { return at::arange(22, at::kLong).mul(7).add(3).remainder(kVocab).view({2, 11}); }

void expect_near(const at::Tensor& foreign, const at::Tensor& cpu, double tolerance) {
  EXPECT_TRUE(is_foreign(foreign));
  EXPECT_LT(relative_error(foreign.cpu(), cpu), tolerance);
}

// All gradients of two stages, the first of which may be on another device.
void expect_same_gradients(Stage& foreign, Stage& cpu, double tolerance) {
  for (const auto& parameter : cpu.parameters().all()) {
    SCOPED_TRACE(parameter.name);
    const auto& other = foreign.parameters().at(parameter.name);
    EXPECT_TRUE(is_foreign(other.value));
    expect_near(other.grad, parameter.grad, tolerance);
  }
}

// float32: sums of a few hundred terms with an error of 6e-8 each, through three blocks and back.
double tolerance_of(Precision precision) { return precision == Precision::kFloat64 ? 1e-12 : 2e-4; }

class Device : public testing::TestWithParam<Precision> {};

TEST_P(Device, ForwardAndBackwardOfAWholeModelAgreeWithTheFusedKernels) {
  for (const auto& [name, config] : device_cases()) {
    for (const bool recomputes : {false, true}) {
      SCOPED_TRACE(name);
      auto cpu = stage_on(at::Device("cpu"), config, whole_model(config), GetParam());
      auto foreign = stage_on(foreign_device(), config, whole_model(config), GetParam());
      for (auto* stage : {&cpu, &foreign}) {
        stage->recompute_blocks(recomputes);
        if (auto* side = stage->subspace()) side->begin_step(/*gather=*/true);
      }
      auto wanted = cpu.forward({some_tokens()}, {}, 0.01);
      auto found = foreign.forward({some_tokens().to(foreign_device())}, {}, 0.01);
      const double tolerance = tolerance_of(GetParam());
      EXPECT_NEAR(found.loss_sum, wanted.loss_sum, tolerance * wanted.loss_sum);
      cpu.backward(std::move(wanted), {});
      foreign.backward(std::move(found), {});
      expect_same_gradients(foreign, cpu, tolerance);
    }
  }
}

TEST_P(Device, AStageInTheMiddlePassesStreamAndGradientOn) {
  for (const auto& [name, config] : device_cases()) {
    SCOPED_TRACE(name);
    auto cpu = stage_on(at::Device("cpu"), config, {1, 2, 3}, GetParam());
    auto foreign = stage_on(foreign_device(), config, {1, 2, 3}, GetParam());
    const int64_t width = config.boundary_width();
    const auto input = random_tensor({20, width}, 1, cpu.options()),
               grad = random_tensor({20, width}, 2, cpu.options());
    auto wanted = cpu.forward({some_tokens()}, input, 1.0);
    auto found = foreign.forward({some_tokens().to(foreign_device())}, input.to(foreign_device()), 1.0);
    const double tolerance = tolerance_of(GetParam());
    expect_near(found.output, wanted.output, tolerance);
    const auto wanted_back = cpu.backward(std::move(wanted), grad.clone());
    expect_near(foreign.backward(std::move(found), grad.to(foreign_device())), wanted_back, tolerance);
    expect_same_gradients(foreign, cpu, tolerance);
  }
}

TEST_P(Device, EvaluationAndGenerationAgree) {
  for (const auto& [name, config] : device_cases()) {
    SCOPED_TRACE(name);
    const auto cpu = stage_on(at::Device("cpu"), config, whole_model(config), GetParam());
    const auto foreign = stage_on(foreign_device(), config, whole_model(config), GetParam());
    const double tolerance = tolerance_of(GetParam());
    const double wanted = cpu.evaluate({some_tokens()}, {}).loss_sum;
    EXPECT_NEAR(foreign.evaluate({some_tokens().to(foreign_device())}, {}).loss_sum, wanted, tolerance * wanted);
    KvCache cpu_cache(config, 11, cpu.options()), foreign_cache(config, 11, foreign.options());
    const auto ids = some_tokens()[0];
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 1}, {5, 6}}) {
      const auto part = ids.narrow(0, first, count);
      expect_near(foreign.logits(foreign.extend(part.to(foreign_device()), foreign_cache)),
                  cpu.logits(cpu.extend(part, cpu_cache)), tolerance);
    }
  }
}

TEST_P(Device, AChangeOfBasisAgrees) {
  const auto config = small_model(ModelMode::kSubspace);
  auto cpu = stage_on(at::Device("cpu"), config, whole_model(config), GetParam());
  auto foreign = stage_on(foreign_device(), config, whole_model(config), GetParam());
  const Basis next{make_basis(3, config.d, config.subspace.rank).u, 1};
  expect_near(foreign.change_over(next), cpu.change_over(next), 1e-15);
  for (const auto& parameter : cpu.parameters().all()) {
    expect_near(foreign.parameters().at(parameter.name).value, parameter.value, tolerance_of(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Device, testing::Values(Precision::kFloat32, Precision::kFloat64),
                         [](const auto& type) { return type.param == Precision::kFloat32 ? "float32" : "float64"; });

TEST(ForeignDevice, RefusesOperationsOnTensorsOfTwoDevices) {
  const auto here = at::ones({2, 3}), there = at::ones({2, 3}, at::TensorOptions().device(foreign_device()));
  const auto before = test::foreign_operations();
  EXPECT_EQ((there + there).sum().item<float>(), 12.0f);
  EXPECT_GT(test::foreign_operations(), before);
  EXPECT_THROW(there.add(here), c10::Error);
  EXPECT_THROW(at::mm(there, here.t()), c10::Error);
  EXPECT_THROW(at::cat({there, here}), c10::Error);
  EXPECT_THROW(there.index_select(0, at::zeros({1}, at::kLong)), c10::Error);
}

TEST(ForeignDeviceDeathTest, ReadingItsMemoryFromTheHostCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto there = at::ones({2}, at::TensorOptions().device(foreign_device()));
  EXPECT_DEATH(std::printf("%f", static_cast<double>(*there.data_ptr<float>())), "");
}

TEST(FixedTable, HashesAreThoseOfTheCpuOnAnyDevice) {
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  const auto numbers = random_tensor({kVocab, 16}, 5, floats);
  const FixedTable drawn(7, kVocab, 16, 0.5, floats), drawn_there(7, kVocab, 16, 0.5, floats.device(foreign_device()));
  const FixedTable given(numbers, floats), given_there(numbers, floats.device(foreign_device()));
  EXPECT_EQ(drawn_there.hash(), drawn.hash());
  EXPECT_EQ(drawn_there.sample_hash(), drawn.sample_hash());
  EXPECT_EQ(given_there.hash(), given.hash());
  EXPECT_EQ(given_there.sample_hash(), given.sample_hash());
}

}  // namespace
}  // namespace thinpipe
