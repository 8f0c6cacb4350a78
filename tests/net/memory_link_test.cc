// The link inside one process: the common suite, and its extra promises.
#include "net/memory_link.h"

#include <gtest/gtest.h>

#include "net/link_conformance.h"

namespace thinpipe {
namespace {

struct MemoryLinks {
  static constexpr LinkShape kShape{};
  auto make() { return make_memory_link(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, LinkConformance, MemoryLinks);
INSTANTIATE_TYPED_TEST_SUITE_P(ShapedMemory, LinkConformance, Shaped<MemoryLinks>);

TEST(MemoryLink, MovesThePayloadAndNeverCopiesIt) {
  auto [upper, lower] = make_memory_link();
  auto frame = packet_frame(numbered(0), MessageBytes(1000), 0);
  const auto* bytes = frame.packet().payload().data();
  ASSERT_TRUE(upper->write(std::move(frame)));
  ASSERT_TRUE(lower->read(frame));
  EXPECT_EQ(frame.packet().payload().data(), bytes);
}

TEST(MemoryLink, DeliversWhatWasWrittenBeforeTheEnd) {
  auto [upper, lower] = make_memory_link();
  wire::Frame frame;
  ASSERT_TRUE(upper->write(last_word_frame("one")) && upper->write(last_word_frame("two")));
  upper.reset();
  EXPECT_TRUE(lower->read(frame) && lower->read(frame));
  EXPECT_EQ(frame.last_word(), "two");
  EXPECT_FALSE(lower->read(frame));
  EXPECT_FALSE(lower->write({}));
  EXPECT_EQ(lower->finish(), "the other end of the link is gone");
}

}  // namespace
}  // namespace thinpipe
