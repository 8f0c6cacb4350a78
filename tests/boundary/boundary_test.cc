#include "boundary/boundary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/rng.h"
#include "boundary/sizes.h"
#include "model/basis.h"
#include "model/fill.h"
#include "model/stage.h"
#include "support/foreign_device.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

RunConfig config_of(ModelMode mode, Pack pack) {
  RunConfig config;
  config.model.mode = mode;
  config.model.d = 32;
  config.model.subspace.rank = 8;
  config.model.subspace.update_every = 500;
  config.train.seq_len = 6;
  config.train.microbatch = 3;
  config.boundary.pack = pack;
  return config;
}

Activation content_of(int64_t width, int64_t vocab) {
  const auto tokens = at::arange(3 * 7, at::kLong).mul(11).remainder(vocab).view({3, 7});
  return {{tokens}, fill_random(CounterRng(1, 2), {18, width}, 1.0, at::TensorOptions().dtype(at::kFloat))};
}

// One side of a cut, with its stage.
class Side {
 public:
  Side(const RunConfig& config, int64_t vocab, int64_t cut, const at::TensorOptions& options)
      : stage_(config.model, vocab, {0, 1, config.model.blocks}, Precision::kFloat64, config.train.seed, at::kCPU),
        boundary_(make_boundary({config, vocab, cut, options, stage_.subspace()})) {}

  Boundary* operator->() { return boundary_.get(); }
  SubspaceSide& subspace() { return *stage_.subspace(); }

 private:
  Stage stage_;
  std::unique_ptr<Boundary> boundary_;
};

constexpr Pack kPacks[] = {Pack::kFp64, Pack::kFp32, Pack::kBf16, Pack::kFp16, Pack::kInt8, Pack::kInt4, Pack::kInt2};

TEST(Boundary, CarriesIdsAndStreamForwardAndTheGradientBack) {
  for (const auto mode : {ModelMode::kSubspace, ModelMode::kDense}) {
    const int64_t width = mode == ModelMode::kSubspace ? 8 : 32;
    for (const int64_t vocab : {300, 70000}) {
      const auto content = content_of(width, vocab);
      Side boundary(config_of(mode, Pack::kFp32), vocab, 0, content.stream.options());
      const auto message = boundary->encode(content, {5, 1});
      EXPECT_EQ(message.size(), boundary_sizes(config_of(mode, Pack::kFp32), vocab).forward);
      const auto decoded = boundary->decode(message, 3).take();
      EXPECT_TRUE(at::equal(decoded.batch.tokens, content.batch.tokens));
      EXPECT_TRUE(at::equal(decoded.stream, content.stream));
      const auto back = boundary->encode_gradient(content.stream, {5, 1});
      EXPECT_TRUE(at::equal(boundary->decode_gradient(back, 3).take(), content.stream));
    }
  }
}

TEST(Boundary, SendsTheSameBytesFromAnyDeviceAndDecodesToTheDevice) {
  const auto there = test::foreign_device();
  for (const auto kind : {BoundaryKind::kStream, BoundaryKind::kTopK, BoundaryKind::kLowRank}) {
    for (const auto pack : kPacks) {
      auto config = config_of(ModelMode::kDense, pack);
      config.boundary.kind = kind;
      config.boundary.keep = 4;
      config.boundary.error_feedback = kind != BoundaryKind::kStream;
      const auto content = content_of(32, 300);
      const auto options = content.stream.options();
      Side cpu(config, 300, 0, options), foreign(config, 300, 0, options.device(there));
      const Activation content_there{{content.batch.tokens.to(there)}, content.stream.to(there)};
      for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {  // the second carries what the first lost
        const auto forward = cpu->encode(content, {5, microbatch});
        EXPECT_EQ(foreign->encode(content_there, {5, microbatch}), forward);
        const auto backward = cpu->encode_gradient(content.stream, {5, microbatch});
        EXPECT_EQ(foreign->encode_gradient(content_there.stream, {5, microbatch}), backward);
        const auto decoded = foreign->decode(forward, 3).take();
        EXPECT_TRUE(test::is_foreign(decoded.batch.tokens) && test::is_foreign(decoded.stream));
        EXPECT_TRUE(at::equal(decoded.batch.tokens.cpu(), content.batch.tokens));
        EXPECT_TRUE(at::equal(decoded.stream.cpu(), cpu->decode(forward, 3).take().stream));
        const auto gradient = foreign->decode_gradient(backward, 3).take();
        EXPECT_TRUE(test::is_foreign(gradient));
        EXPECT_TRUE(at::equal(gradient.cpu(), cpu->decode_gradient(backward, 3).take()));
      }
    }
  }
}

TEST(Boundary, SizesFollowFromTheConfig) {
  auto config = config_of(ModelMode::kSubspace, Pack::kBf16);
  // Per sequence 4 bytes of length and 7 ids of 2, or of 4 for large vocabularies; then 18 rows of k = 8 coordinates.
  EXPECT_EQ(boundary_sizes(config, 65536).forward, 3u * (4 + 7 * 2) + 18u * 8 * 2);
  EXPECT_EQ(boundary_sizes(config, 65537).forward, 3u * (4 + 7 * 4) + 18u * 8 * 2);
  EXPECT_EQ(boundary_sizes(config, 300).backward, 18u * 8 * 2);
  EXPECT_EQ(boundary_sizes(config, 300).end_of_step, 8u + 32 * 8 * 8);
  EXPECT_EQ(boundary_sizes(config, 300, 1).backward, 6u * 8 * 2);
  config.pipeline.stages = 1;
  EXPECT_EQ(boundary_sizes(config, 300).largest(), 0u);
}

TEST(Boundary, HasAnEndOfStepOnlyWhenTheBasisChanges) {
  for (const auto mode : {ModelMode::kSubspace, ModelMode::kDense}) {
    auto config = config_of(mode, Pack::kFp32);
    config.model.subspace.update_every = 5;
    Side boundary(config, 300, 0, {});
    for (int64_t step = 0; step < 20; ++step) {
      const bool moves = mode == ModelMode::kSubspace && (step + 1) % 5 == 0;
      EXPECT_EQ(boundary->has_end_of_step(Direction::kBackward, step), moves);
      EXPECT_FALSE(boundary->has_end_of_step(Direction::kForward, step));
    }
  }
}

TEST(Boundary, AcceptsOnlyTheNextOrthonormalBasis) {
  const auto config = config_of(ModelMode::kSubspace, Pack::kFp32);
  Side lower(config, 300, 0, {}), upper(config, 300, 0, {});
  const auto take = [&](std::span<const std::byte> message) {
    return lower->take_end_of_step(Direction::kBackward, message);
  };
  const Basis next{make_basis(2, 32, 8).u, 1};
  upper.subspace().set_next_basis(next);
  auto message = upper->end_of_step(Direction::kBackward);
  EXPECT_EQ(message.size(), boundary_sizes(config, 300).end_of_step);
  ASSERT_TRUE(take(message).ok());
  EXPECT_EQ(basis_hash(*lower.subspace().next_basis()), basis_hash(next));
  EXPECT_EQ(lower.subspace().basis().version, 0);  // not used before the commit
  lower.subspace().drop_tap();
  EXPECT_FALSE(lower.subspace().next_basis());

  EXPECT_FALSE(take(std::span(message).first(message.size() - 1)).ok());
  lower.subspace().set_basis(next);
  EXPECT_EQ(take(message).error().message, "basis version 1 arrived, expected 2");
  lower.subspace().set_basis(make_basis(1, 32, 8));
  message[20] ^= std::byte{0x7f};
  EXPECT_FALSE(take(message).ok());  // not orthonormal any more
  EXPECT_FALSE(lower.subspace().next_basis());
}

TEST(Boundary, RefusesMessagesOfAnyOtherSize) {
  for (const auto pack : kPacks) {
    const auto content = content_of(8, 300);
    Side boundary(config_of(ModelMode::kSubspace, pack), 300, 0, content.stream.options());
    auto forward = boundary->encode(content, {0, 0});
    auto backward = boundary->encode_gradient(content.stream, {0, 0});
    for (size_t size = 0; size < forward.size(); ++size) {
      EXPECT_FALSE(boundary->decode(std::span(forward).first(size), 3).ok());
    }
    for (size_t size = 0; size < backward.size(); ++size) {
      EXPECT_FALSE(boundary->decode_gradient(std::span(backward).first(size), 3).ok());
    }
    forward.push_back({});
    backward.push_back({});
    EXPECT_FALSE(boundary->decode(forward, 3).ok());
    EXPECT_FALSE(boundary->decode_gradient(backward, 3).ok());
  }
}

TEST(Boundary, RefusesIdsBeyondTheVocabularyAndForeignLengths) {
  const auto content = content_of(8, 300);
  Side boundary(config_of(ModelMode::kSubspace, Pack::kFp32), 300, 0, content.stream.options());
  auto message = boundary->encode(content, {0, 0});
  auto bad_id = message;
  bad_id[3 * 4 + 5] = std::byte{0xff};  // high byte of the third id
  const auto refused = boundary->decode(bad_id, 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is not below the vocabulary of 300"), std::string::npos);
  auto bad_length = message;
  bad_length[0] = std::byte{99};
  EXPECT_FALSE(boundary->decode(bad_length, 3).ok());
}

TEST(Boundary, BytesFlippedAnywhereNeverCrash) {
  const auto content = content_of(8, 300);
  for (const auto pack : kPacks) {
    Side boundary(config_of(ModelMode::kSubspace, pack), 300, 0, content.stream.options());
    const auto message = boundary->encode(content, {0, 0});
    for (size_t i = 0; i < message.size(); ++i) {
      auto flipped = message;
      flipped[i] ^= std::byte{0x80};
      const auto decoded = boundary->decode(flipped, 3);
      if (decoded.ok()) {
        EXPECT_LT(decoded.value().batch.tokens.max().item<int64_t>(), 300);
      }
    }
  }
}

TEST(Boundary, RoundingOfGradientsDependsOnStepMicrobatchAndCut) {
  const auto content = content_of(8, 300);
  const auto config = config_of(ModelMode::kSubspace, Pack::kInt4);
  Side first(config, 300, 0, content.stream.options());
  Side second(config, 300, 1, content.stream.options());
  const auto message = first->encode_gradient(content.stream, {5, 1});
  EXPECT_EQ(first->encode_gradient(content.stream, {5, 1}), message);
  EXPECT_NE(first->encode_gradient(content.stream, {6, 1}), message);
  EXPECT_NE(first->encode_gradient(content.stream, {5, 2}), message);
  EXPECT_NE(second->encode_gradient(content.stream, {5, 1}), message);
}

TEST(Boundary, NamesARankThatDoesNotFitThePack) {
  auto config = config_of(ModelMode::kSubspace, Pack::kInt2);
  config.model.subspace.rank = 6;
  config.pipeline.stages = 2;
  const auto said = test::user_error([&] { check_boundary(config); });
  EXPECT_TRUE(said.starts_with("boundary.pack = \"int2\" with subspace.rank = 6")) << said;
  config.model.subspace.rank = 8;
  EXPECT_NO_THROW(check_boundary(config));
}

}  // namespace
}  // namespace thinpipe
