// The link inside one process: the common suite, and what only it promises.
#include "net/memory_link.h"

#include <gtest/gtest.h>

#include "net/link_conformance.h"

namespace thinpipe {
namespace {

struct MemoryLinks {
  auto make(int64_t capacity_down, int64_t capacity_up) { return make_memory_link(capacity_down, capacity_up); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, LinkConformance, MemoryLinks);

TEST(MemoryLink, MovesTheBytesAndNeverCopiesThem) {
  auto [upper, lower] = make_memory_link(1, 1);
  MessageBytes message(1000);
  const auto* bytes = message.data();
  ASSERT_TRUE(upper->send(std::move(message)).ok());
  EXPECT_EQ(lower->receive().value().data(), bytes);
}

TEST(MemoryLink, HoldsNoMoreThanItsCapacity) {
  auto [upper, lower] = make_memory_link(3, 1);
  std::atomic<uint64_t> sent = 0;
  std::thread sender([&, &from = *upper] { send_many(from, 1, 1000, &sent); });
  while (sent < 3) std::this_thread::yield();
  // Every chance for a sender that does not wait.
  for (int turn = 0; turn < 1000; ++turn) std::this_thread::yield();
  upper->close("done");
  sender.join();
  EXPECT_EQ(sent.load(), 3u);
}

TEST(MemoryLink, ACloseLosesNothingThatWasSentToTheClosingEnd) {
  auto [upper, lower] = make_memory_link(2, 2);
  EXPECT_EQ(send_many(*lower, 1, 2), 2u);
  upper->close("done");
  EXPECT_EQ(receive_many(*upper, 1, 2), 2u);
  EXPECT_EQ(upper->receive().error().message, "done");
}

TEST(MemoryLink, SaysThatTheOtherEndIsGone) {
  auto [upper, lower] = make_memory_link(2, 2);
  EXPECT_EQ(send_many(*upper, 1, 2), 2u);
  upper.reset();
  EXPECT_EQ(receive_many(*lower, 1, 2), 2u);
  EXPECT_EQ(lower->receive().error().message, "the other end of the link is gone");
}

TEST(MemoryLinkDeathTest, AMessageInADirectionWithoutRoomIsAFault) {
  auto [upper, lower] = make_memory_link(1, 0);
  EXPECT_DEATH((void)lower->send(MessageBytes(8)).ok(), "a message of 8 bytes on a direction without room for any");
}

}  // namespace
}  // namespace thinpipe
