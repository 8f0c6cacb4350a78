// What every Link must do, whatever carries it. A transport brings a factory and instantiates the suite:
//
//   struct MyLinks { std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make(int64_t down, int64_t up); };
//   INSTANTIATE_TYPED_TEST_SUITE_P(My, LinkConformance, MyLinks);
//
// The factory is a member of the fixture, so servers it holds live as long as a test. A link that loses a wake-up hangs
// here and fails by ctest's time limit: nothing in the suite waits for time to pass.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/sha256.h"
#include "net/link.h"
#include "support/draw.h"

namespace thinpipe {

using MessageBytes = std::vector<std::byte>;

// Random bytes that depend on (seed, number) alone, so that a receiver knows what must arrive.
inline MessageBytes test_message(uint64_t seed, uint64_t number, size_t bytes) {
  const CounterRng rng(seed, number);
  MessageBytes message(bytes);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = rng.bits64(at / 8);
    std::memcpy(message.data() + at, &word, std::min<size_t>(8, bytes - at));
  }
  return message;
}

// Of varying size, sometimes empty.
inline MessageBytes small_message(uint64_t seed, uint64_t number) {
  return test_message(seed, number, test::below(CounterRng(seed, "size"), 200, number));
}

inline std::string hash_of(const MessageBytes& message) {
  return sha256_hex({reinterpret_cast<const char*>(message.data()), message.size()});
}

inline ::testing::AssertionResult holds(const Error& error, std::string_view reason) {
  if (error.message.find(reason) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the error '" << error.message << "' does not hold '" << reason << "'";
}

inline ::testing::AssertionResult fails_with(const Status& status, std::string_view reason) {
  if (status.ok()) return ::testing::AssertionFailure() << "sent on a closed link";
  return holds(status.error(), reason);
}

inline ::testing::AssertionResult fails_with(const Result<MessageBytes>& received, std::string_view reason) {
  if (received.ok()) return ::testing::AssertionFailure() << "received " << received.value().size() << " bytes";
  return holds(received.error(), reason);
}

// Sends small_message(seed, 0..count-1); returns how many were accepted before the link closed. so_far: the same while
// it goes on, for other threads.
inline uint64_t send_many(Link& link, uint64_t seed, uint64_t count, std::atomic<uint64_t>* so_far = nullptr) {
  for (uint64_t number = 0; number < count; ++number) {
    if (!link.send(small_message(seed, number))) return number;
    if (so_far != nullptr) ++*so_far;
  }
  return count;
}

// Receives up to count messages and checks that they are those of send_many; returns how many came before the error.
inline uint64_t receive_many(Link& link, uint64_t seed, uint64_t count, std::atomic<uint64_t>* so_far = nullptr) {
  for (uint64_t number = 0; number < count; ++number) {
    const auto message = link.receive();
    if (!message) return number;
    if (message.value() != small_message(seed, number)) {
      ADD_FAILURE() << "message " << number << " is not what was sent";
      link.close("a message was not what was sent");
      return number;
    }
    if (so_far != nullptr) ++*so_far;
  }
  return count;
}

template <class Factory>
class LinkConformance : public ::testing::Test {
 protected:
  // Messages; a test sends at most so many unless it means to wait.
  void connect(int64_t down, int64_t up) { std::tie(upper, lower) = factory.make(down, up); }

  Factory factory;
  std::unique_ptr<Link> upper;  // sends down
  std::unique_ptr<Link> lower;  // sends up
};
TYPED_TEST_SUITE_P(LinkConformance);

TYPED_TEST_P(LinkConformance, KeepsTheOrderInBothDirections) {
  this->connect(10, 10);
  EXPECT_EQ(send_many(*this->upper, 1, 10), 10u);
  EXPECT_EQ(send_many(*this->lower, 2, 10), 10u);
  EXPECT_EQ(receive_many(*this->lower, 1, 10), 10u);
  EXPECT_EQ(receive_many(*this->upper, 2, 10), 10u);
}

TYPED_TEST_P(LinkConformance, DoesNotLetOneDirectionHoldUpTheOther) {
  this->connect(3, 2);
  EXPECT_EQ(send_many(*this->upper, 1, 3), 3u);  // down is full and nobody takes anything
  for (uint64_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(this->lower->send(test_message(2, round, 16)).ok());
    const auto message = this->upper->receive();
    ASSERT_TRUE(message.ok());
    EXPECT_EQ(message.value(), test_message(2, round, 16));
  }
  EXPECT_EQ(receive_many(*this->lower, 1, 3), 3u);
}

TYPED_TEST_P(LinkConformance, CarriesLargeAndEmptyMessagesIntact) {
  this->connect(3, 3);
  const auto large = test_message(3, 0, (size_t{6} << 20) + 5);
  const auto hash = hash_of(large);
  std::thread sender([&] {
    EXPECT_TRUE(this->upper->send({}).ok());
    EXPECT_TRUE(this->upper->send(MessageBytes(large)).ok());
    EXPECT_TRUE(this->upper->send({}).ok());
  });
  for (const size_t bytes : {size_t{0}, large.size(), size_t{0}}) {
    const auto message = this->lower->receive();
    if (!message) {
      ADD_FAILURE() << message.error().message;
      break;
    }
    EXPECT_EQ(hash_of(message.value()), bytes > 0 ? hash : hash_of({}));
  }
  sender.join();
}

TYPED_TEST_P(LinkConformance, CloseWakesReceiversThatWait) {
  for (const bool by_upper : {true, false}) {
    this->connect(1, 1);
    std::latch waiting(2);
    auto wait_for_close = [&](Link& link) {
      waiting.count_down();
      EXPECT_TRUE(fails_with(link.receive(), "enough for today"));
    };
    std::thread above(wait_for_close, std::ref(*this->upper));
    std::thread below(wait_for_close, std::ref(*this->lower));
    waiting.wait();
    (by_upper ? this->upper : this->lower)->close("enough for today");
    above.join();
    below.join();
  }
}

TYPED_TEST_P(LinkConformance, CloseWakesASenderThatWaits) {
  for (const bool by_sender : {true, false}) {
    this->connect(2, 1);
    Status last;
    std::atomic<bool> ended = false;
    std::atomic<int> sent = 0;
    std::thread sender([&] {
      for (; last.ok(); ++sent) last = this->upper->send(MessageBytes(1 << 16));
      ended = true;
    });
    // The sender fills the link; it waits now or will soon.
    while (!ended && sent < 2) std::this_thread::yield();
    (by_sender ? this->upper : this->lower)->close("enough for today");
    sender.join();
    EXPECT_TRUE(fails_with(last, "enough for today"));
  }
}

TYPED_TEST_P(LinkConformance, DeliversWhatWasSentBeforeTheCloseThenTheReason) {
  this->connect(3, 3);
  EXPECT_EQ(send_many(*this->upper, 1, 3), 3u);
  this->upper->close("enough for today");
  EXPECT_EQ(receive_many(*this->lower, 1, 3), 3u);
  EXPECT_TRUE(fails_with(this->lower->receive(), "enough for today"));
  EXPECT_TRUE(fails_with(this->lower->receive(), "enough for today"));
}

TYPED_TEST_P(LinkConformance, RefusesToSendAfterTheClose) {
  this->connect(3, 3);
  this->lower->close("enough for today");
  EXPECT_TRUE(fails_with(this->lower->send(MessageBytes(8)), "enough for today"));
  // Once the other end has heard of it, which receive() tells.
  EXPECT_TRUE(fails_with(this->upper->receive(), "enough for today"));
  EXPECT_TRUE(fails_with(this->upper->send(MessageBytes(8)), "enough for today"));
}

TYPED_TEST_P(LinkConformance, KeepsTheFirstReason) {
  this->connect(1, 1);
  this->upper->close("the first reason");
  this->upper->close("a second reason");
  EXPECT_TRUE(fails_with(this->lower->receive(), "the first reason"));
  this->lower->close("a third reason");
  EXPECT_TRUE(fails_with(this->lower->receive(), "the first reason"));
  EXPECT_TRUE(fails_with(this->upper->receive(), "the first reason"));
  EXPECT_TRUE(fails_with(this->upper->send(MessageBytes(8)), "the first reason"));
}

TYPED_TEST_P(LinkConformance, DestroyingAnEndClosesTheOther) {
  for (const bool destroy_upper : {true, false}) {
    this->connect(1, 1);
    auto& gone = destroy_upper ? this->upper : this->lower;
    auto& left = destroy_upper ? this->lower : this->upper;
    std::latch waiting(1);
    std::thread receiver([&] {
      waiting.count_down();
      const auto message = left->receive();
      ASSERT_FALSE(message.ok());
      EXPECT_FALSE(message.error().message.empty()) << "no reason given";
    });
    waiting.wait();
    gone.reset();
    receiver.join();
    EXPECT_FALSE(left->send(MessageBytes(8)).ok());
  }
}

TYPED_TEST_P(LinkConformance, LosesNothingBetweenBusyThreads) {
  constexpr uint64_t kMessages = 2000;
  this->connect(1, 3);
  uint64_t received_below = 0;
  uint64_t received_above = 0;
  std::thread down([&] { send_many(*this->upper, 1, kMessages); });
  std::thread up([&] { send_many(*this->lower, 2, kMessages); });
  std::thread below([&] { received_below = receive_many(*this->lower, 1, kMessages); });
  std::thread above([&] { received_above = receive_many(*this->upper, 2, kMessages); });
  for (auto* thread : {&down, &up, &below, &above}) thread->join();
  EXPECT_EQ(received_below, kMessages);
  EXPECT_EQ(received_above, kMessages);
}

TYPED_TEST_P(LinkConformance, ACloseAmidTrafficStopsEveryoneAndTearsNothing) {
  for (uint64_t round = 0; round < 20; ++round) {
    this->connect(2, 2);
    uint64_t sent = 0;
    uint64_t received = 0;
    std::atomic<bool> ended = false;
    std::atomic<uint64_t> received_so_far = 0;
    std::thread down([&] { sent = send_many(*this->upper, round, 1000000); });
    std::thread below([&] {
      received = receive_many(*this->lower, round, 1000000, &received_so_far);
      ended = true;
    });
    while (!ended && received_so_far < 5 * round) std::this_thread::yield();
    this->upper->close("enough for today");  // from a third thread
    down.join();
    below.join();
    EXPECT_GE(received, 5 * round);
    EXPECT_EQ(received, sent) << "the closing end had sent them all before it closed";
    EXPECT_TRUE(fails_with(this->lower->receive(), "enough for today"));
  }
}

REGISTER_TYPED_TEST_SUITE_P(LinkConformance, KeepsTheOrderInBothDirections, DoesNotLetOneDirectionHoldUpTheOther,
                            CarriesLargeAndEmptyMessagesIntact, CloseWakesReceiversThatWait, CloseWakesASenderThatWaits,
                            DeliversWhatWasSentBeforeTheCloseThenTheReason, RefusesToSendAfterTheClose,
                            KeepsTheFirstReason, DestroyingAnEndClosesTheOther, LosesNothingBetweenBusyThreads,
                            ACloseAmidTrafficStopsEveryoneAndTearsNothing);

}  // namespace thinpipe
