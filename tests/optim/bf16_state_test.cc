// Moments in bf16: the rounding and its twins, that it keeps the mean, that small changes survive it, and each rule
// against its recurrence, written here number by number with the rounding as docs/rng.md states it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "model/basis.h"
#include "optim/kernels/bf16_rounding.h"
#include "optim/optimizer.h"
#include "optim/random_parameters.h"

namespace thinpipe {
namespace {

constexpr uint64_t kSeed = 9;
const at::TensorOptions kFloats = at::TensorOptions().dtype(at::kFloat);

at::Tensor floats(at::IntArrayRef shape, uint64_t stream) {
  return fill_random(CounterRng(5, stream), shape, 1.0, kFloats);
}

at::Tensor bf16_like(const at::Tensor& values) { return at::empty_like(values, values.options().dtype(at::kBFloat16)); }

// The neighbour of `value` in bf16 below it (towards 0), or above if random / 2^16 is at least what is left: written
// with divisions instead of bits.
float naive_rounded(float value, uint32_t random) {
  if (value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -125) - 8);  // 8 bits of bf16's mantissa
  const double steps = std::trunc(std::abs(value) / unit), left = std::abs(value) / unit - steps;
  const double up = left * 65536 + random >= 65536 ? 1 : 0;
  return static_cast<float>(std::copysign((steps + up) * unit, value));
}

uint32_t random_of(const std::string& name, uint64_t step, uint64_t element) {
  const uint64_t place = (step << 40) + element;
  const uint32_t word = CounterRng(kSeed, "optim." + name).bits32(place / 2);
  return place % 2 == 0 ? word & 0xffff : word >> 16;
}

TEST(Bf16Rounding, IsTheSameAsItsTwins) {
  const CounterRng rng(3, "x");
  const int64_t count = 5003;
  const auto values = floats({count}, 1) * at::pow(2.0, floats({count}, 2) * 60.0);
  for (const uint64_t first : {uint64_t{0}, uint64_t{7}, (uint64_t{11} << 40) + 4}) {
    const auto fused = bf16_like(values), aten = bf16_like(values);
    round_stochastically(values, rng, first, fused);
    aten_ops::round_stochastically(values, rng, first, aten);
    EXPECT_TRUE(at::equal(fused, aten)) << first;
    for (int64_t i = 0; i < count; i += 13) {
      const uint64_t element = first + static_cast<uint64_t>(i);
      const uint32_t word = rng.bits32(element / 2), random = element % 2 == 0 ? word & 0xffff : word >> 16;
      EXPECT_EQ(fused[i].item<float>(), naive_rounded(values[i].item<float>(), random)) << i;
    }
  }
}

TEST(Bf16Rounding, GivesTheSameBitsWithAnyNumberOfThreadsAndInPieces) {
  const CounterRng rng(3, "x");
  const auto values = floats({200'001}, 1);
  const auto whole = bf16_like(values), pieces = bf16_like(values);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  round_stochastically(values, rng, 5, whole);
  at::set_num_threads(1);
  for (int64_t first = 0; first < values.numel(); first += 70'001) {
    const int64_t count = std::min<int64_t>(70'001, values.numel() - first);
    round_stochastically(values.narrow(0, first, count), rng, 5 + static_cast<uint64_t>(first),
                         pieces.narrow(0, first, count));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(whole, pieces));
}

TEST(Bf16Rounding, KeepsTheMean) {
  // A hundred thousand roundings of each number. Their mean has a standard deviation of at most unit / 2 / sqrt(1e5);
  // five of those are 0.8 % of the distance between two neighbours in bf16.
  const int64_t draws = 100'000;
  for (const double value : {1.0 + 1.0 / 1024, 0.3, -7.77, 1e-20, 1.0 - 1.0 / 2048}) {
    const auto values = at::full({draws}, value, kFloats), rounded = bf16_like(values);
    round_stochastically(values, CounterRng(1, "mean"), 0, rounded);
    const double unit = std::ldexp(1.0, std::ilogb(value) - 7);
    const auto given = values[0].item<double>();  // as float32
    EXPECT_NEAR(rounded.to(at::kDouble).mean().item<double>(), given, 0.008 * unit) << value;
  }
}

TEST(Bf16Rounding, LeavesNumbersOfBf16AndWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float late_nan = std::bit_cast<float>(0x7f800001u);  // its payload is below bf16's bits
  auto values = at::zeros({64}, kFloats);
  const float given[] = {0.0f, -0.0f, 1.0f, -2.5f, infinity, -infinity, nan, late_nan};
  for (int64_t i = 0; i < 64; ++i) values[i] = given[i % 8];
  for (const bool fused : {true, false}) {
    const auto rounded = bf16_like(values);
    const auto round = fused ? &round_stochastically : &aten_ops::round_stochastically;
    round(values, CounterRng(1, "y"), 3, rounded);
    EXPECT_TRUE(at::allclose(rounded.to(at::kFloat), values, 0, 0, /*equal_nan=*/true)) << fused;
  }
}

OptimConfig bf16_config(OptimizerKind kind) {
  OptimConfig config;
  config.kind = kind;
  config.lr = 0.01;
  config.warmup = 0;
  config.schedule = LrSchedule::kConstant;
  config.weight_decay = 0.1;
  config.state = StateFormat::kBf16;
  return config;
}

TEST(Bf16State, AdamwMatchesTheRecurrencePerElement) {
  const auto config = bf16_config(OptimizerKind::kAdamw);
  RandomParameters set(1, kDoubles);
  auto& parameter = set.add_random("w", ParameterKind::kMatrix, {3, 5}, 1.0);
  Optimizer optimizer(config, 10, set, kSeed);
  std::vector<double> w(15), m(15), v(15);
  for (int i = 0; i < 15; ++i) w[i] = parameter.value.view({-1})[i].item<double>();
  for (int step = 0; step < 5; ++step) {
    parameter.grad.copy_(random_tensor({3, 5}, 100 + static_cast<uint64_t>(step)));
    optimizer.apply(step, 0.5);
    const auto state = optimizer.state();
    for (int i = 0; i < 15; ++i) {
      const double g = 0.5 * parameter.grad.view({-1})[i].item<double>();
      m[i] = config.beta1 * m[i] + (1 - config.beta1) * g;
      v[i] = config.beta2 * v[i] + (1 - config.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(config.beta1, step + 1)),
                   v_hat = v[i] / (1 - std::pow(config.beta2, step + 1));
      w[i] = (1 - config.lr * config.weight_decay) * w[i] - config.lr * m_hat / (std::sqrt(v_hat) + config.eps);
      EXPECT_NEAR(parameter.value.view({-1})[i].item<double>(), w[i], 1e-14);
      const auto number = static_cast<uint64_t>(step) + 1, element = static_cast<uint64_t>(i);
      m[i] = naive_rounded(static_cast<float>(m[i]), random_of("w.m", number, element));
      v[i] = naive_rounded(static_cast<float>(v[i]), random_of("w.v", number, element));
      EXPECT_EQ(state[0].tensor.view({-1})[i].item<double>(), m[i]);
      EXPECT_EQ(state[1].tensor.view({-1})[i].item<double>(), v[i]);
    }
  }
}

TEST(Bf16State, RowAdamwAndMuonComputeWithTheRoundedMoments) {
  // The moments after each step are the recurrence on the rounded moments before it, rounded.
  for (const auto kind : {OptimizerKind::kRowAdamw, OptimizerKind::kMuon}) {
    const auto config = bf16_config(kind);
    const bool muon = kind == OptimizerKind::kMuon;
    const double beta = muon ? config.momentum : config.beta1;
    RandomParameters set(1, kDoubles);
    auto& a = set.add_random("a", ParameterKind::kCoordinates, {4, 3}, 1.0);
    a.full_width = 24;
    Optimizer optimizer(config, 10, set, kSeed);
    auto m = at::zeros({4, 3}, kDoubles), v = at::zeros({4, 1}, kDoubles);
    for (uint64_t step = 0; step < 4; ++step) {
      a.grad.copy_(random_tensor({4, 3}, 40 + step));
      optimizer.apply(static_cast<int64_t>(step), 1.0);
      m = m * beta + a.grad * (1 - beta);
      v = v * config.beta2 + a.grad.square().sum(1, true) * ((1 - config.beta2) / 24);
      const auto state = optimizer.state();
      ASSERT_EQ(state.size(), muon ? 1u : 2u);
      for (size_t i = 0; i < state.size(); ++i) {
        auto numbers = (i == 0 ? m : v).view({-1});
        const auto kept = state[i].tensor.view({-1}).to(at::kDouble);
        EXPECT_EQ(state[i].tensor.scalar_type(), at::kBFloat16);
        for (int64_t j = 0; j < numbers.numel(); ++j) {
          const auto random = random_of("a." + state[i].name, step + 1, static_cast<uint64_t>(j));
          const float exact = naive_rounded(static_cast<float>(numbers[j].item<double>()), random);
          EXPECT_EQ(kept[j].item<float>(), exact) << static_cast<int>(kind) << " " << state[i].name << " " << j;
          numbers[j] = exact;
        }
      }
    }
  }
}

// Gradients of one size: the second moment should stay near its square. Rounded to nearest, it would stop falling and
// rising long before: with beta2 = 0.999 a step changes it by at most a thousandth, bf16 has steps of 1/128.
TEST(Bf16State, SecondMomentFollowsSmallChangesWhichRoundingToNearestLoses) {
  const int64_t count = 4096;
  for (const double beta2 : {0.95, 0.999}) {
    auto config = bf16_config(OptimizerKind::kAdamw);
    config.beta2 = beta2;
    RandomParameters set(1, kFloats);
    auto& w = set.add_random("w", ParameterKind::kMatrix, {1, count}, 1.0);
    Optimizer optimizer(config, 10'000, set, kSeed);
    auto nearest = at::zeros({1, count}, kFloats.dtype(at::kBFloat16));
    double exact = 0;
    const int64_t steps = beta2 < 0.99 ? 100 : 2000;
    for (int64_t step = 0; step < steps; ++step) {
      w.grad.fill_(0.1);
      optimizer.apply(step, 1.0);
      exact = beta2 * exact + (1 - beta2) * 0.01;
      nearest = (nearest.to(at::kFloat) * beta2 + (1 - beta2) * 0.01).to(at::kBFloat16);
    }
    const double mean = optimizer.state()[1].tensor.to(at::kDouble).mean().item<double>();
    const double lost = nearest.to(at::kDouble).mean().item<double>();
    // 4096 numbers, each with rounding noise of about 1/256 sqrt(1 / (1 - beta2^2)) of its size: their mean has far
    // less than a hundredth.
    EXPECT_NEAR(mean / exact, 1.0, 0.01) << "beta2 " << beta2;
    if (beta2 > 0.99) {
      EXPECT_LT(lost / exact, 0.5);
    }
  }
}

TEST(Bf16State, ChangeOverRotatesTheMoments) {
  for (const auto kind : {OptimizerKind::kAdamw, OptimizerKind::kRowAdamw, OptimizerKind::kMuon}) {
    RandomParameters set(1, kDoubles);
    auto& a = set.add_random("a", ParameterKind::kCoordinates, {5, 3}, 1.0);
    a.full_width = 24;
    Optimizer optimizer(bf16_config(kind), 10, set, kSeed);
    a.grad.copy_(random_tensor({5, 3}, 7));
    optimizer.apply(0, 1.0);
    std::vector<at::Tensor> before;
    for (const auto& moment : optimizer.state()) before.push_back(moment.tensor.to(at::kDouble).clone());
    const auto q = make_basis(1, 24, 3).u.t().mm(make_basis(2, 24, 3).u);
    optimizer.change_over(q);
    const auto after = optimizer.state();
    EXPECT_TRUE(at::equal(after[0].tensor, before[0].mm(q).to(at::kBFloat16)));
    if (kind == OptimizerKind::kAdamw) {
      EXPECT_TRUE(at::equal(after[1].tensor, before[1].mm(q.square()).to(at::kBFloat16)));
    }
    if (kind == OptimizerKind::kRowAdamw) {
      EXPECT_TRUE(at::equal(after[1].tensor.to(at::kDouble), before[1]));
    }
  }
}

TEST(Bf16State, AnUpdateInPiecesIsTheUpdateOfTheWhole) {
  // More numbers than an update takes at once, in both forms of the state.
  for (const auto state : {StateFormat::kFull, StateFormat::kBf16}) {
    auto config = bf16_config(OptimizerKind::kAdamw);
    config.state = state;
    RandomParameters set(1, kFloats);
    auto& w = set.add_random("w", ParameterKind::kMatrix, {301, 501}, 1.0);
    Optimizer optimizer(config, 10, set, kSeed);
    auto expected = w.value.clone(), m = at::zeros_like(expected), v = at::zeros_like(expected);
    for (int64_t step = 0; step < 3; ++step) {
      w.grad.copy_(random_tensor({301, 501}, 60 + static_cast<uint64_t>(step)));
      optimizer.apply(step, 1.0);
      m.mul_(config.beta1).add_(w.grad, 1 - config.beta1);
      v.mul_(config.beta2).addcmul_(w.grad, w.grad, 1 - config.beta2);
      const double count = static_cast<double>(step + 1);
      const auto root = (v / (1 - std::pow(config.beta2, count))).sqrt() + config.eps;
      expected =
          expected * (1 - config.lr * config.weight_decay) - config.lr / (1 - std::pow(config.beta1, count)) * m / root;
      for (auto* moment : {&m, &v}) {  // what the next step starts from
        const auto kept = optimizer.state()[moment == &m ? 0 : 1].tensor.to(at::kFloat);
        // bf16's neighbours are at most 1/128 apart.
        EXPECT_TRUE(at::allclose(kept, *moment, state == StateFormat::kFull ? 1e-6 : 1.0 / 128, 1e-12));
        moment->copy_(kept);
      }
      EXPECT_TRUE(at::allclose(w.value, expected, 1e-5, 1e-6)) << step;
      expected.copy_(w.value);
    }
  }
}

}  // namespace
}  // namespace thinpipe
