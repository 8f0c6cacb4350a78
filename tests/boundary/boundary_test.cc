#include "boundary/boundary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "tensor/fill.h"

namespace thinpipe {
namespace {

RunConfig config_of(ModelMode mode, Pack pack) {
  RunConfig config;
  config.model.mode = mode;
  config.model.d = 32;
  config.model.subspace.rank = 8;
  config.train.seq_len = 6;
  config.boundary.pack = pack;
  return config;
}

ForwardContent content_of(int64_t width, int64_t vocab) {
  const auto tokens = at::arange(3 * 7, at::kLong).mul(11).remainder(vocab).view({3, 7});
  return {{tokens}, fill_random(CounterRng(1, 2), {18, width}, 1.0, at::TensorOptions().dtype(at::kFloat))};
}

constexpr Pack kPacks[] = {Pack::kFp64, Pack::kFp32, Pack::kBf16, Pack::kFp16, Pack::kInt8, Pack::kInt4, Pack::kInt2};

TEST(Boundary, CarriesIdsAndStreamForwardAndTheGradientBack) {
  for (const auto mode : {ModelMode::kSubspace, ModelMode::kDense}) {
    const int64_t width = mode == ModelMode::kSubspace ? 8 : 32;
    for (const int64_t vocab : {300, 70000}) {
      const auto content = content_of(width, vocab);
      const auto boundary = make_boundary(config_of(mode, Pack::kFp32), vocab, 0, content.stream.options());
      const auto message = boundary->encode_forward(content, {5, 1});
      EXPECT_EQ(message.size(), boundary->forward_bytes(3));
      const auto decoded = boundary->decode_forward(message, 3).take();
      EXPECT_TRUE(at::equal(decoded.batch.tokens, content.batch.tokens));
      EXPECT_TRUE(at::equal(decoded.stream, content.stream));
      const auto back = boundary->encode_backward(content.stream, {5, 1});
      EXPECT_TRUE(at::equal(boundary->decode_backward(back, 3).take(), content.stream));
    }
  }
}

TEST(Boundary, SizesFollowFromTheConfig) {
  // Per sequence 4 bytes of length and 7 ids of 2; then 18 rows of k = 8 bf16 coordinates.
  const auto boundary = make_boundary(config_of(ModelMode::kSubspace, Pack::kBf16), 4096, 0, {});
  EXPECT_EQ(boundary->forward_bytes(3), 3u * (4 + 7 * 2) + 18u * 8 * 2);
  EXPECT_EQ(boundary->backward_bytes(3), 18u * 8 * 2);
}

TEST(Boundary, RefusesEveryOtherSize) {
  for (const auto pack : kPacks) {
    const auto content = content_of(8, 300);
    const auto boundary = make_boundary(config_of(ModelMode::kSubspace, pack), 300, 0, content.stream.options());
    auto forward = boundary->encode_forward(content, {0, 0});
    auto backward = boundary->encode_backward(content.stream, {0, 0});
    for (size_t size = 0; size < forward.size(); ++size) {
      EXPECT_FALSE(boundary->decode_forward(std::span(forward).first(size), 3).ok());
    }
    for (size_t size = 0; size < backward.size(); ++size) {
      EXPECT_FALSE(boundary->decode_backward(std::span(backward).first(size), 3).ok());
    }
    forward.push_back({});
    backward.push_back({});
    EXPECT_FALSE(boundary->decode_forward(forward, 3).ok());
    EXPECT_FALSE(boundary->decode_backward(backward, 3).ok());
  }
}

TEST(Boundary, RefusesIdsBeyondTheVocabularyAndForeignLengths) {
  const auto content = content_of(8, 300);
  const auto boundary = make_boundary(config_of(ModelMode::kSubspace, Pack::kFp32), 300, 0, content.stream.options());
  auto message = boundary->encode_forward(content, {0, 0});
  auto bad_id = message;
  bad_id[3 * 4 + 5] = std::byte{0xff};  // high byte of the third id
  const auto refused = boundary->decode_forward(bad_id, 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is not below the vocabulary of 300"), std::string::npos);
  auto bad_length = message;
  bad_length[0] = std::byte{99};
  EXPECT_FALSE(boundary->decode_forward(bad_length, 3).ok());
}

TEST(Boundary, BytesFlippedAnywhereNeverCrash) {
  const auto content = content_of(8, 300);
  for (const auto pack : kPacks) {
    const auto boundary = make_boundary(config_of(ModelMode::kSubspace, pack), 300, 0, content.stream.options());
    const auto message = boundary->encode_forward(content, {0, 0});
    for (size_t i = 0; i < message.size(); ++i) {
      auto flipped = message;
      flipped[i] ^= std::byte{0x80};
      const auto decoded = boundary->decode_forward(flipped, 3);
      if (decoded.ok()) {
        EXPECT_LT(decoded.value().batch.tokens.max().item<int64_t>(), 300);
      }
    }
  }
}

TEST(Boundary, GradientsRoundByStepMicrobatchAndCut) {
  const auto content = content_of(8, 300);
  const auto config = config_of(ModelMode::kSubspace, Pack::kInt4);
  const auto first = make_boundary(config, 300, 0, content.stream.options());
  const auto second = make_boundary(config, 300, 1, content.stream.options());
  const auto message = first->encode_backward(content.stream, {5, 1});
  EXPECT_EQ(first->encode_backward(content.stream, {5, 1}), message);
  EXPECT_NE(first->encode_backward(content.stream, {6, 1}), message);
  EXPECT_NE(first->encode_backward(content.stream, {5, 2}), message);
  EXPECT_NE(second->encode_backward(content.stream, {5, 1}), message);
}

TEST(Boundary, NamesARankThatDoesNotFitThePack) {
  auto config = config_of(ModelMode::kSubspace, Pack::kInt2);
  config.model.subspace.rank = 6;
  config.pipeline.stages = 2;
  try {
    check_pack(config);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("boundary.pack = \"int2\" with subspace.rank = 6"), std::string::npos)
        << error.what();
  }
  config.model.subspace.rank = 8;
  EXPECT_NO_THROW(check_pack(config));
}

}  // namespace
}  // namespace thinpipe
