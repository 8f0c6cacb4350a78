// Compares every hand-written backward pass with finite differences in float64.
#include "model/kernels/ops.h"
#include "model/numeric.h"

namespace thinpipe {
namespace {

double weighted_sum(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum().item<double>(); }

TEST(Gradient, RmsNorm_MatchesFiniteDifferences) {
  const auto x = random_tensor({5, 8}, 1), gain = random_tensor({8}, 2), weight = random_tensor({5, 8}, 3);
  const auto loss = [&] { return weighted_sum(ops::rms_norm(x, gain, 1e-5).h, weight); };
  auto dx = at::zeros_like(x), d_gain = at::zeros_like(gain);
  ops::rms_norm_backward(weight, x, ops::rms_norm(x, gain, 1e-5).s, gain, dx, d_gain);
  EXPECT_LT(relative_error(dx, finite_difference(x, loss)), kFiniteDifferenceTolerance);
  EXPECT_LT(relative_error(d_gain, finite_difference(gain, loss)), kFiniteDifferenceTolerance);
}

TEST(Gradient, Rope_IsTheInverseRotation) {
  const int64_t positions = 4, heads = 3, head_dim = 6;
  const auto table = make_rope_table(positions, head_dim, 100.0, doubles());
  const auto x = random_tensor({2 * positions, heads * head_dim}, 1), weight = random_tensor(x.sizes(), 2);
  const auto loss = [&] {
    const auto rotated = x.clone();
    ops::rope_(rotated, table, heads, head_dim, false);
    return weighted_sum(rotated, weight);
  };
  const auto dx = weight.clone();
  ops::rope_(dx, table, heads, head_dim, true);
  EXPECT_LT(relative_error(dx, finite_difference(x, loss)), kFiniteDifferenceTolerance);
}

TEST(Gradient, Swiglu_MatchesFiniteDifferences) {
  const auto gate_up = random_tensor({4, 14}, 1), weight = random_tensor({4, 7}, 2);
  const auto loss = [&] { return weighted_sum(ops::swiglu(gate_up), weight); };
  EXPECT_LT(relative_error(ops::swiglu_backward(weight, gate_up), finite_difference(gate_up, loss)),
            kFiniteDifferenceTolerance);
}

TEST(Gradient, CausalGroupedQueryAttention_MatchesFiniteDifferences) {
  for (const int64_t kv_heads : {1, 2, 4}) {
    const AttentionShape shape{2, 5, 4, kv_heads, 3};
    const auto qkv = random_tensor({shape.sequences * shape.length, shape.qkv_width()}, 1);
    const auto weight = random_tensor({shape.sequences * shape.length, shape.query_width()}, 2);
    const auto loss = [&] { return weighted_sum(ops::attention(qkv, shape).output, weight); };
    const auto d_qkv = ops::attention_backward(weight, qkv, ops::attention(qkv, shape), shape);
    EXPECT_LT(relative_error(d_qkv, finite_difference(qkv, loss)), kFiniteDifferenceTolerance) << kv_heads;
  }
}

TEST(Gradient, CrossEntropy_MatchesFiniteDifferences) {
  const auto logits = random_tensor({6, 9}, 1);
  const auto targets = at::arange(6, at::kLong).remainder(9);
  const double scale = 0.37;
  const auto loss = [&] {
    auto copy = logits.clone();
    return scale * ops::cross_entropy_(copy, targets, false, 0);
  };
  auto gradient = logits.clone();
  ops::cross_entropy_(gradient, targets, true, scale);
  EXPECT_LT(relative_error(gradient, finite_difference(logits, loss)), kFiniteDifferenceTolerance);
}

}  // namespace
}  // namespace thinpipe
