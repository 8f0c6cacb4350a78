// The lossy boundaries: what topk and lowrank send and rebuild, against naive twins, and what error feedback adds.
#include "boundary/codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "boundary/boundary.h"
#include "boundary/columns.h"
#include "boundary/sizes.h"
#include "model/fill.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

constexpr int64_t kWidth = 32, kSequences = 3, kLength = 6, kRows = kSequences * kLength;
const auto kDouble = at::TensorOptions().dtype(at::kDouble);

RunConfig config_of(BoundaryKind kind, Pack pack, int64_t keep) {
  RunConfig config;
  config.model.mode = ModelMode::kDense;
  config.model.d = kWidth;
  config.train.seq_len = kLength;
  config.train.microbatch = kSequences;
  config.boundary.kind = kind;
  config.boundary.pack = pack;
  config.boundary.keep = keep;
  config.pipeline.stages = 2;
  return config;
}

at::Tensor random_stream(uint64_t stream) { return fill_random(CounterRng(1, stream), {kRows, kWidth}, 1.0, kDouble); }

Activation activation_of(const at::Tensor& stream) {
  return {{at::arange(kSequences * (kLength + 1), at::kLong).view({kSequences, kLength + 1})}, stream};
}

std::unique_ptr<Boundary> boundary_of(const RunConfig& config) { return make_boundary({config, 300, 0, kDouble}); }

at::Tensor sent(const RunConfig& config, const at::Tensor& stream) {
  const auto codec = make_codec(config, kDouble);
  std::vector<std::byte> bytes(stream_bytes(config, stream.size(0)));
  codec->encode(stream, Rounding::kNearest, {1, 2}, bytes);
  return codec->decode(bytes, stream.size(0)).take();
}

TEST(TopK, KeepsTheLargestNumbersOfEachRowAndNothingElse) {
  const auto stream = random_stream(1);
  const auto rebuilt = sent(config_of(BoundaryKind::kTopK, Pack::kFp64, 5), stream);
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<double> sizes;
    for (int64_t i = 0; i < kWidth; ++i) sizes.push_back(std::abs(stream[row][i].item<double>()));
    std::nth_element(sizes.begin(), sizes.begin() + 4, sizes.end(), std::greater<>());
    const double least = sizes[4];
    for (int64_t i = 0; i < kWidth; ++i) {
      const auto x = stream[row][i].item<double>();
      EXPECT_EQ(rebuilt[row][i].item<double>(), std::abs(x) >= least ? x : 0.0) << row << " " << i;
    }
  }
}

TEST(TopK, OfAllColumns_LosesNothing) {
  const auto stream = random_stream(1);
  EXPECT_TRUE(at::equal(sent(config_of(BoundaryKind::kTopK, Pack::kFp64, kWidth), stream), stream));
}

TEST(LowRank, OfAMatrixOfThatRank_LosesNothing) {
  const auto stream = random_stream(1).narrow(1, 0, 3).mm(random_stream(2).narrow(0, 0, 3));
  const auto rebuilt = sent(config_of(BoundaryKind::kLowRank, Pack::kFp64, 3), stream);
  EXPECT_LT((rebuilt - stream).norm().item<double>(), 1e-12 * stream.norm().item<double>());
}

TEST(LowRank, IsNearTheBestMatrixOfThatRank) {
  // A spectrum that falls, as that of activations does.
  const auto fall = at::pow(0.7, at::arange(kWidth, kDouble));
  const auto stream = random_stream(1) * fall;
  const auto rebuilt = sent(config_of(BoundaryKind::kLowRank, Pack::kFp64, 4), stream);
  const auto values = at::linalg_svdvals(stream);
  const double best = values.slice(0, 4).norm().item<double>(), error = (rebuilt - stream).norm().item<double>();
  EXPECT_GE(error, best * (1 - 1e-12));
  EXPECT_LT(error, 1.1 * best);
}

TEST(LowRank, OfNothing_IsNothing) {
  const auto zeros = at::zeros({kRows, kWidth}, kDouble);
  EXPECT_TRUE(at::equal(sent(config_of(BoundaryKind::kLowRank, Pack::kFp64, 4), zeros), zeros));
}

TEST(LossyBoundary, SizesFollowFromTheConfig) {
  const size_t ids = 3 * (4 + 7 * 2);
  const auto top = boundary_sizes(config_of(BoundaryKind::kTopK, Pack::kBf16, 5), 300);
  EXPECT_EQ(top.backward, 18u * 5 * (2 + 2));
  EXPECT_EQ(top.forward, ids + top.backward);
  const auto low = boundary_sizes(config_of(BoundaryKind::kLowRank, Pack::kBf16, 5), 300);
  EXPECT_EQ(low.backward, (18u + 32) * 5 * 2);
  EXPECT_EQ(low.forward, ids + low.backward);
}

TEST(LossyBoundary, RefusesOtherSizesAndSurvivesFlippedBytes) {
  for (const auto kind : {BoundaryKind::kTopK, BoundaryKind::kLowRank}) {
    for (const auto pack : {Pack::kFp32, Pack::kBf16, Pack::kInt8, Pack::kInt4}) {
      const auto boundary = boundary_of(config_of(kind, pack, 4));
      const auto forward = boundary->encode(activation_of(random_stream(1)), {0, 0});
      const auto backward = boundary->encode_gradient(random_stream(1), {0, 0});
      for (size_t size = 0; size < forward.size(); ++size) {
        EXPECT_FALSE(boundary->decode(std::span(forward).first(size), kSequences).ok());
      }
      for (size_t size = 0; size < backward.size(); ++size) {
        EXPECT_FALSE(boundary->decode_gradient(std::span(backward).first(size), kSequences).ok());
      }
      for (size_t i = 0; i < backward.size(); ++i) {
        auto flipped = backward;
        flipped[i] ^= std::byte{0x80};
        const auto decoded = boundary->decode_gradient(flipped, kSequences);
        if (decoded.ok()) {
          EXPECT_EQ(decoded.value().numel(), kRows * kWidth);
        }
      }
    }
  }
}

TEST(Columns, ThatAreNotAscendingOrTooLarge_AreRefused) {
  std::vector<std::byte> bytes(4 * 2);
  std::vector<int64_t> columns(4);
  const auto read = [&](std::vector<int64_t> wanted) {
    write_columns(wanted, 32, bytes);
    return read_columns(bytes, 2, 32, columns);
  };
  EXPECT_TRUE(read({3, 31, 0, 1}).ok());
  EXPECT_EQ(columns, (std::vector<int64_t>{3, 31, 0, 1}));
  EXPECT_EQ(read({3, 31, 5, 5}).error().message, "row 1 names column 5 after 5; needs ascending columns below 32");
  EXPECT_FALSE(read({7, 3, 0, 1}).ok());
  EXPECT_FALSE(read({7, 32, 0, 1}).ok());
}

TEST(LossyBoundary, BadSettingsAreRefusedWithWhatWouldBeRight) {
  const auto said = [](const RunConfig& config) { return test::user_error([&] { check_boundary(config); }); };
  auto config = config_of(BoundaryKind::kTopK, Pack::kFp32, 33);
  EXPECT_EQ(said(config), "boundary.keep = 33: \"topk\" needs at most model.d = 32");
  config = config_of(BoundaryKind::kLowRank, Pack::kFp32, 7);
  EXPECT_EQ(said(config), "boundary.keep = 7: \"lowrank\" needs at most train.seq_len = 6");
  config = config_of(BoundaryKind::kTopK, Pack::kInt4, 5);
  EXPECT_TRUE(said(config).starts_with("boundary.pack = \"int4\" with boundary.keep = 5: ")) << said(config);
  config.model.mode = ModelMode::kSubspace;
  EXPECT_TRUE(said(config).starts_with("boundary.kind = \"topk\": needs model.mode = \"dense\"")) << said(config);
  config.pipeline.stages = 1;
  EXPECT_NO_THROW(check_boundary(config));
}

// What arrived in a step of three microbatches with this boundary.
at::Tensor arrived_in_step(Boundary& boundary, uint64_t step) {
  at::Tensor sum = at::zeros({kRows, kWidth}, kDouble);
  for (uint64_t m = 0; m < 3; ++m) {
    const auto message = boundary.encode_gradient(random_stream(10 * step + m), {step, m});
    sum += boundary.decode_gradient(message, kSequences).take();
  }
  return sum;
}

at::Tensor meant_in_step(uint64_t step) {
  return random_stream(10 * step) + random_stream(10 * step + 1) + random_stream(10 * step + 2);
}

TEST(ErrorFeedback, WhatArrivedAndWhatIsLeftOut_IsWhatWasMeant) {
  for (const auto kind : {BoundaryKind::kStream, BoundaryKind::kTopK, BoundaryKind::kLowRank}) {
    auto config = config_of(kind, Pack::kInt4, 4);
    config.boundary.error_feedback = true;
    const auto boundary = boundary_of(config);
    at::Tensor arrived = at::zeros({kRows, kWidth}, kDouble), meant = arrived.clone();
    for (uint64_t step = 0; step < 4; ++step) {
      arrived += arrived_in_step(*boundary, step);
      meant += meant_in_step(step);
      boundary->commit(true);
    }
    EXPECT_GT((meant - arrived).norm().item<double>(), 0.1);
    EXPECT_LT((arrived + boundary->left_out() - meant).abs().max().item<double>(), 1e-12);
  }
}

TEST(ErrorFeedback, AnAbandonedOrSkippedStepLeavesNoTrace) {
  auto config = config_of(BoundaryKind::kTopK, Pack::kFp32, 4);
  config.boundary.error_feedback = true;
  const auto disturbed = boundary_of(config), smooth = boundary_of(config);
  for (auto* boundary : {disturbed.get(), smooth.get()}) {
    arrived_in_step(*boundary, 0);
    boundary->commit(true);
  }
  disturbed->encode_gradient(random_stream(99), {1, 0});  // aborted in the middle
  arrived_in_step(*disturbed, 1);
  disturbed->commit(false);  // skipped
  EXPECT_TRUE(at::equal(disturbed->left_out(), smooth->left_out()));
  EXPECT_TRUE(at::equal(arrived_in_step(*disturbed, 2), arrived_in_step(*smooth, 2)));
}

TEST(ErrorFeedback, AnEvaluationNeitherUsesNorChangesIt) {
  auto config = config_of(BoundaryKind::kTopK, Pack::kFp32, 4);
  const auto plain = boundary_of(config);
  config.boundary.error_feedback = true;
  const auto boundary = boundary_of(config);
  boundary->encode(activation_of(random_stream(1)), {0, 0});
  boundary->commit(true);
  const auto before = boundary->left_out();
  const MessageNumber evaluation{0, 0, true};
  EXPECT_EQ(boundary->encode(activation_of(random_stream(2)), evaluation),
            plain->encode(activation_of(random_stream(2)), evaluation));
  boundary->commit(true);
  EXPECT_TRUE(at::equal(boundary->left_out(), before));
}

}  // namespace
}  // namespace thinpipe
