// Compares the fused CPU kernels with their ATen twins, on sizes that do not fit any block or vector width.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <thread>

#include "model/kernels/ops.h"
#include "model/numeric.h"
#include "model/products.h"

namespace thinpipe {
namespace {

class Kernels : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::TensorOptions options() const { return at::TensorOptions().dtype(GetParam()); }
  // float32: a few hundred terms with an error of 6e-8 each; float64: 1e-16 each.
  double tolerance() const { return GetParam() == at::kFloat ? 5e-6 : 1e-14; }
};

TEST_P(Kernels, RmsNormAgrees) {
  const auto x = random_tensor({77, 45}, 1, options()), gain = random_tensor({45}, 2, options());
  const auto fused = ops::rms_norm(x, gain, 1e-5), plain = aten_ops::rms_norm(x, gain, 1e-5);
  EXPECT_LT(relative_error(fused.h, plain.h), tolerance());
  EXPECT_LT(relative_error(fused.s, plain.s), tolerance());

  const auto dh = random_tensor({77, 45}, 3, options());
  auto dx = random_tensor({77, 45}, 4, options()), d_gain = random_tensor({45}, 5, options());
  auto dx_plain = dx.clone(), d_gain_plain = d_gain.clone();
  ops::rms_norm_backward(dh, x, plain.s, gain, dx, d_gain);
  aten_ops::rms_norm_backward(dh, x, plain.s, gain, dx_plain, d_gain_plain);
  EXPECT_LT(relative_error(dx, dx_plain), tolerance());
  EXPECT_LT(relative_error(d_gain, d_gain_plain), tolerance());
}

TEST_P(Kernels, RopeAgreesOnRowsThatAreWiderThanTheHeads) {
  const auto table = make_rope_table(7, 10, 10000.0, options());
  for (const bool inverse : {false, true}) {
    const auto fused = random_tensor({21, 50}, 1, options());
    const auto plain = fused.clone();
    ops::rope_(fused, table, 3, 10, inverse);
    aten_ops::rope_(plain, table, 3, 10, inverse);
    EXPECT_LT(relative_error(fused, plain), tolerance());
    EXPECT_TRUE(at::equal(fused.narrow(1, 30, 20), plain.narrow(1, 30, 20)));  // columns past the heads are left alone
  }
}

TEST_P(Kernels, SwigluAgreesForSmallAndHugeInputs) {
  const auto gate_up = random_tensor({33, 58}, 1, options());
  gate_up.select(0, 0).mul_(200);  // sigmoid saturates on both sides
  const auto dy = random_tensor({33, 29}, 2, options());
  EXPECT_LT(relative_error(ops::swiglu(gate_up), aten_ops::swiglu(gate_up)), tolerance());
  EXPECT_LT(relative_error(ops::swiglu_backward(dy, gate_up), aten_ops::swiglu_backward(dy, gate_up)), tolerance());
}

// Tiles are 96 rows and keys, strips of the diagonal 24 rows, panels 8 or 16 numbers wide.
TEST_P(Kernels, AttentionAgreesAcrossTiles) {
  for (const int64_t length : {1, 5, 24, 96, 97, 131, 300}) {
    for (const int64_t head_dim : {2, 6, 16, 40}) {
      SCOPED_TRACE(fmt::format("length {}, head_dim {}", length, head_dim));
      const AttentionShape shape{2, length, 4, 2, head_dim};
      // Scores of up to a hundred or so: the largest changes from tile to tile, and far smaller ones vanish.
      const auto qkv = random_tensor({2 * length, shape.qkv_width()}, 1, options()).mul_(3);
      const auto d_output = random_tensor({2 * length, shape.query_width()}, 2, options());
      const auto fused = ops::attention(qkv, shape), plain = aten_ops::attention(qkv, shape);
      EXPECT_LT(relative_error(fused.output, plain.output), tolerance());
      EXPECT_LT(relative_error(fused.lse, plain.lse), tolerance());
      EXPECT_LT(relative_error(ops::attention_backward(d_output, qkv, plain, shape),
                               aten_ops::attention_backward(d_output, qkv, plain, shape)),
                tolerance());
    }
  }
}

TEST_P(Kernels, CrossEntropyAgreesWithLargeLogits) {
  for (const bool gradient : {false, true}) {
    auto fused = random_tensor({70, 61}, 1, options()).mul(20);
    auto plain = fused.clone();
    const auto targets = at::arange(70, at::kLong).remainder(61);
    const double a = ops::cross_entropy_(fused, targets, gradient, 0.25);
    const double b = aten_ops::cross_entropy_(plain, targets, gradient, 0.25);
    EXPECT_NEAR(a, b, tolerance() * b);
    EXPECT_LT(relative_error(fused, plain), tolerance());
  }
}

TEST_P(Kernels, AnchorTableAgreesForwardAndBackward) {
  const auto ids = at::arange(90, at::kLong).mul(7).remainder(41);
  const auto tokens = index_tokens(ids);
  const int64_t unique = tokens.unique.size(0), n = 37;
  const auto a = random_tensor({90}, 1, options()), b = random_tensor({90}, 2, options());
  const auto table = random_tensor({unique, n}, 3, options()), dy = random_tensor({90, n}, 4, options());
  auto fused = random_tensor({90, n}, 5, options());
  auto plain = fused.clone();
  ops::table_read_(fused, a, b, table, tokens);
  aten_ops::table_read_(plain, a, b, table, tokens);
  EXPECT_LT(relative_error(fused, plain), tolerance());
  const auto fused_back = ops::table_read_backward(dy, b, table, tokens);
  const auto plain_back = aten_ops::table_read_backward(dy, b, table, tokens);
  EXPECT_LT(relative_error(fused_back.dots, plain_back.dots), tolerance());
  EXPECT_LT(relative_error(fused_back.d_table, plain_back.d_table), tolerance());
}

TEST_P(Kernels, GainProductBackwardAgrees) {
  const auto x = random_tensor({50, 43}, 1, options()), w = random_tensor({50, 43}, 2, options());
  const auto gain = random_tensor({50}, 3, options());
  auto dw = random_tensor({50, 43}, 4, options()), dg = random_tensor({50}, 5, options());
  auto dw_plain = dw.clone(), dg_plain = dg.clone();
  ops::gain_product_backward(x, w, gain, dw, dg);
  aten_ops::gain_product_backward(x, w, gain, dw_plain, dg_plain);
  EXPECT_LT(relative_error(dw, dw_plain), tolerance());
  EXPECT_LT(relative_error(dg, dg_plain), tolerance());
}

TEST_P(Kernels, SquaredSumAgreesAndTakesNumbersWhoseSquaresOverflow) {
  for (const int64_t count : {0, 1, 1000, 100'001}) {
    const auto x = random_tensor({count}, 1, options());
    const double plain = aten_ops::squared_sum(x);
    EXPECT_NEAR(ops::squared_sum(x), plain, 1e-12 * plain);  // both add in double
  }
  const auto large = at::full({3}, 1e30, options());
  EXPECT_NEAR(ops::squared_sum(large), 3e60, 1e54);
  EXPECT_FALSE(std::isfinite(ops::squared_sum(at::full({3}, std::nan(""), options()))));
}

TEST_P(Kernels, NesterovAgrees) {
  auto fused = random_tensor({70, 613}, 1, options());
  auto plain = fused.clone();
  const auto grad = random_tensor({70, 613}, 2, options());
  for (const double factor : {1.0, 0.3}) {
    const auto direction = ops::nesterov_(fused, grad, factor, 0.9);
    EXPECT_LT(relative_error(direction, aten_ops::nesterov_(plain, grad, factor, 0.9)), tolerance());
    EXPECT_LT(relative_error(fused, plain), tolerance());
  }
}

TEST_P(Kernels, GramAgreesForAnyView) {
  const auto wide = random_tensor({270, 290}, 1, options());
  for (const auto& x : {wide, wide.t(), wide.narrow(1, 3, 40), wide.t().narrow(0, 5, 33), wide.narrow(0, 0, 1),
                        wide.narrow(1, 7, 1), wide.slice(1, 0, 90, 3), wide.slice(0, 0, 90, 3)}) {
    SCOPED_TRACE(x.sizes());
    const auto product = ops::gram(x);
    EXPECT_LT(relative_error(product, aten_ops::gram(x)), tolerance());
    EXPECT_TRUE(at::equal(product, product.t()));
  }
}

TEST_P(Kernels, InverseAgreesAndIsNotANumberWhereThereIsNone) {
  for (const int64_t size : {1, 33, 100}) {
    const auto x = random_tensor({size, 2 * size}, 1, options());
    const auto a = x.mm(x.t()), inverse = ops::inverse_of_positive(a);
    EXPECT_LT(relative_error(inverse, aten_ops::inverse_of_positive(a)), 100 * tolerance());  // the condition of a
    EXPECT_LT(relative_error(inverse.mm(a), at::eye(size, options())), 100 * tolerance());
    EXPECT_TRUE(at::equal(inverse, inverse.t()));
    EXPECT_TRUE(ops::inverse_of_positive(-a).isnan().all().item<bool>());
    EXPECT_TRUE(aten_ops::inverse_of_positive(-a).isnan().all().item<bool>());
  }
}

// Large enough for several threads, split by rows and by columns, and too small for that.
TEST_P(Kernels, ProductsAgreeForAnyNumberOfThreads) {
  const Products products(Precision::kFloat32);
  const int before = at::get_num_threads();
  for (const auto& [m, k, n] : {std::array<int64_t, 3>{301, 77, 203}, {60, 90, 701}, {3, 5, 7}, {1, 900, 1}}) {
    const auto a = random_tensor({m, k}, 1, options()), b = random_tensor({n, k}, 2, options()).t(),
               c = random_tensor({m, n}, 3, options());
    for (const int threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, {} threads", m, k, n, threads));
      at::set_num_threads(threads);
      EXPECT_LT(relative_error(products.multiply(a, b), a.mm(b)), tolerance());
      EXPECT_LT(relative_error(products.multiply_add(c, a, b), c + a.mm(b)), tolerance());
      auto sum = at::zeros({m, 2 * n}, options()).narrow(1, n, n);  // rows with a gap between them
      products.accumulate(sum, a, b);
      products.accumulate(sum, a, b);
      EXPECT_LT(relative_error(sum, 2 * a.mm(b)), tolerance());
      EXPECT_EQ(at::get_num_threads(), threads);
    }
  }
  at::set_num_threads(before);
}

TEST(Threads, LoopsOfTheKernelsRunOnSeveral) {
#ifndef _OPENMP
  GTEST_SKIP() << "built without OpenMP";
#endif
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  std::array<std::thread::id, 2> ids;
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ids[static_cast<size_t>(i)] = std::this_thread::get_id();
  });
  at::set_num_threads(before);
  EXPECT_NE(ids[0], ids[1]);
}

TEST(IndexTokens, FindsEveryRowOfEveryDistinctToken) {
  const auto ids = at::tensor({5, 3, 5, 9, 3, 5}, at::kLong);
  const auto tokens = index_tokens(ids);
  EXPECT_TRUE(at::equal(tokens.unique, at::tensor({3, 5, 9}, at::kLong)));
  EXPECT_TRUE(at::equal(tokens.inverse, at::tensor({1, 0, 1, 2, 0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(tokens.order, at::tensor({1, 4, 0, 2, 5, 3}, at::kLong)));
  EXPECT_TRUE(at::equal(tokens.offsets, at::tensor({0, 2, 5, 6}, at::kLong)));
}

TEST_P(Kernels, ThreadsDoNotChangeAttentionOrLoss) {
  const AttentionShape shape{3, 20, 4, 2, 6};
  const auto qkv = random_tensor({60, shape.qkv_width()}, 1, options());
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = ops::attention(qkv, shape);
  at::set_num_threads(3);
  const auto three = ops::attention(qkv, shape);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one.output, three.output));
}

INSTANTIATE_TEST_SUITE_P(Types, Kernels, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& type) { return type.param == at::kFloat ? "float32" : "float64"; });

TEST(SoftmaxKernel, ExponentialIsAccurate) {
  // Scores in float32 whose softmax is known in float64: relative error of each probability within a few ulp.
  auto scores = at::linspace(-80, 0, 4001, at::kFloat).unsqueeze(0).contiguous();
  const auto exact = scores.to(at::kDouble).softmax(1);
  auto grad = scores.clone();
  ops::cross_entropy_(grad, at::zeros({1}, at::kLong), true, 1.0);
  grad[0][0] += 1.0f;  // back from softmax - one_hot
  const auto error = ((grad.to(at::kDouble) - exact) / exact).narrow(1, 1, 4000).abs().max().item<double>();
  EXPECT_LT(error, 2e-6);
}

}  // namespace
}  // namespace thinpipe
