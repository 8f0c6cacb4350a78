// The loss of a text, summed window by window, for tokens in portions of any size.
#include "models/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models.h"

namespace thinpipe {
namespace {

double naive_nats(const Stage& stage, const std::vector<int32_t>& tokens, size_t length) {
  double nats = 0;
  for (size_t first = 0; first + 1 < tokens.size(); first += length) {
    const auto window = std::span(tokens).subspan(first, std::min(length + 1, tokens.size() - first));
    nats += stage.evaluate(batch_of({window.begin(), window.end()}), {}).loss_sum;
  }
  return nats;
}

TEST(Evaluator, PredictsEveryTokenButTheFirstOnce) {
  const auto stage = make_model(small_subspace());
  for (const size_t count : {2u, 9u, 10u, 33u, 34u, 5000u}) {
    const auto tokens = some_tokens(count);
    Evaluator evaluator(*stage, 8);
    // In portions of other sizes than the windows.
    for (size_t at = 0; at < count; at += 7) {
      evaluator.add(std::span(tokens).subspan(at, std::min<size_t>(7, count - at)));
    }
    const auto& result = evaluator.finish();
    EXPECT_EQ(result.predicted, static_cast<int64_t>(count) - 1);
    const double expected = naive_nats(*stage, tokens, 8);
    EXPECT_NEAR(result.nats, expected, 1e-11 * expected) << count;
  }
}

TEST(Evaluator, WithFewerThanTwoTokensPredictsNothing) {
  const auto stage = make_model(small_dense());
  Evaluator evaluator(*stage, 8);
  EXPECT_EQ(evaluator.finish().predicted, 0);
  evaluator.add(std::vector<int32_t>{1});
  EXPECT_EQ(evaluator.finish().predicted, 0);
}

TEST(Evaluation, PerplexityAndBitsPerByteFollowFromTheNats) {
  const Evaluation result{std::log(8.0) * 10, 10};
  EXPECT_NEAR(result.perplexity(), 8, 1e-12);
  EXPECT_NEAR(result.bits_per_byte(15), 2, 1e-12);  // 10 tokens of 3 bits on 15 bytes
}

}  // namespace
}  // namespace thinpipe
