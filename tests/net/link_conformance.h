// What a PacketLink must do over any Link, shaped or not. A transport brings a factory and instantiates the suite:
//
//   struct MyLinks {
//     static constexpr LinkShape kShape{};
//     std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make();
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(My, LinkConformance, MyLinks);
//
// The factory is a member of the fixture, so servers it holds live as long as a test. A link that loses a wake-up hangs
// here and fails by ctest's time limit: nothing in the suite waits for time to pass.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "net/packet_links.h"

namespace thinpipe {

// Uses every part of a shape, each too quick to slow the suite down.
inline constexpr LinkShape kQuickLine{2'000'000'000, std::chrono::microseconds(20), std::chrono::microseconds(20)};
// Slows the links of a factory down.
template <class Inner>
struct Shaped : Inner {
  static constexpr LinkShape kShape = kQuickLine;
};

template <class Factory>
class LinkConformance : public ::testing::Test {
 protected:
  void connect() {
    upper.reset();
    lower.reset();
    auto [near, far] = factory.make();
    upper = std::make_unique<PacketLink>(std::move(near), numbered_rules(), kEpoch, Factory::kShape, 1);
    lower = std::make_unique<PacketLink>(std::move(far), numbered_rules(), kEpoch, Factory::kShape, 2);
    for (auto* end : {upper.get(), lower.get()}) end->enter(kEpoch, kStep);
  }

  Factory factory;
  std::unique_ptr<PacketLink> upper;
  std::unique_ptr<PacketLink> lower;
};
TYPED_TEST_SUITE_P(LinkConformance);

TYPED_TEST_P(LinkConformance, CarriesPacketsBothWays) {
  this->connect();
  EXPECT_EQ(send_many(*this->upper, 1, 10), 10u);
  EXPECT_EQ(send_many(*this->lower, 2, 10), 10u);
  EXPECT_EQ(receive_many(*this->lower, 1, 10), 10u);
  EXPECT_EQ(receive_many(*this->upper, 2, 10), 10u);
}

TYPED_TEST_P(LinkConformance, DoesNotLetOneDirectionHoldUpTheOther) {
  this->connect();
  std::atomic<uint64_t> sent = 0;
  std::thread down([&] { send_many(*this->upper, 1, 1'000'000, &sent); });  // nobody receives
  while (sent < PacketLink::kEvaluationAhead) std::this_thread::yield();
  for (uint64_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(this->lower->send(numbered(round), small_message(2, round), 0).ok());
    const auto message = this->upper->receive(numbered(round), 0);
    ASSERT_TRUE(message.ok()) << message.error().message;
    EXPECT_EQ(bytes_of(message.value()), small_message(2, round));
  }
  EXPECT_EQ(receive_many(*this->lower, 1, 50), 50u);
  this->lower->close("enough for today");
  down.join();
}

TYPED_TEST_P(LinkConformance, CarriesLargeAndEmptyPayloadsIntact) {
  this->connect();
  const auto large = test_message(3, 0, (size_t{6} << 20) + 5);
  std::thread sender([&] {
    EXPECT_TRUE(this->upper->send(numbered(0), {}, 0).ok());
    EXPECT_TRUE(this->upper->send(numbered(1), large, 0).ok());
    EXPECT_TRUE(this->upper->send(numbered(2), {}, 0).ok());
  });
  for (const uint64_t number : {0, 1, 2}) {
    const auto message = this->lower->receive(numbered(number), 0);
    if (!message) {
      ADD_FAILURE() << message.error().message;
      break;
    }
    EXPECT_TRUE(bytes_of(message.value()) == (number == 1 ? large : MessageBytes())) << number;
  }
  sender.join();
}

TYPED_TEST_P(LinkConformance, CloseWakesReceiversThatWait) {
  for (const bool by_upper : {true, false}) {
    this->connect();
    std::latch waiting(2);
    auto wait_for_close = [&](PacketLink& link) {
      waiting.count_down();
      EXPECT_TRUE(fails_with(link.receive(numbered(0), 0), "enough for today"));
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
    this->connect();
    Status last;
    std::atomic<bool> ended = false;
    std::atomic<uint64_t> sent = 0;
    std::thread sender([&] {
      for (; last.ok(); ++sent) last = this->upper->send(numbered(sent), MessageBytes(1 << 16), 0);
      ended = true;
    });
    // The sender fills the link; it waits now or will soon.
    while (!ended && sent < PacketLink::kEvaluationAhead) std::this_thread::yield();
    (by_sender ? this->upper : this->lower)->close("enough for today");
    sender.join();
    EXPECT_TRUE(fails_with(last, "enough for today"));
  }
}

TYPED_TEST_P(LinkConformance, DeliversWhatWasSentBeforeTheCloseThenTheReason) {
  this->connect();
  EXPECT_EQ(send_many(*this->upper, 1, 10), 10u);
  this->upper->close("enough for today");
  EXPECT_EQ(receive_many(*this->lower, 1, 10), 10u);
  EXPECT_TRUE(fails_with(this->lower->receive(numbered(10), 0), "enough for today"));
  EXPECT_TRUE(fails_with(this->lower->receive(numbered(10), 0), "enough for today"));
}

TYPED_TEST_P(LinkConformance, KeepsTheFirstReasonAtBothEnds) {
  this->connect();
  this->upper->close("the first reason");
  this->upper->close("a second reason");
  EXPECT_TRUE(fails_with(this->upper->send(numbered(0), MessageBytes(8), 0), "the first reason"));
  EXPECT_TRUE(fails_with(this->lower->receive(numbered(0), 0), "the first reason"));
  this->lower->close("a third reason");
  EXPECT_TRUE(fails_with(this->lower->receive(numbered(0), 0), "the first reason"));
  EXPECT_TRUE(fails_with(this->lower->send(numbered(0), MessageBytes(8), 0), "the first reason"));
  EXPECT_TRUE(fails_with(this->upper->receive(numbered(0), 0), "the first reason"));
}

TYPED_TEST_P(LinkConformance, DestroyingAnEndClosesTheOther) {
  for (const bool destroy_upper : {true, false}) {
    this->connect();
    auto& gone = destroy_upper ? this->upper : this->lower;
    auto& left = destroy_upper ? this->lower : this->upper;
    std::latch waiting(1);
    std::thread receiver([&] {
      waiting.count_down();
      EXPECT_TRUE(fails_with(left->receive(numbered(0), 0), "the stage at the other end has left"));
    });
    waiting.wait();
    gone.reset();
    receiver.join();
    EXPECT_FALSE(left->send(numbered(0), MessageBytes(8), 0).ok());
  }
}

// No PacketLink was made at the other end.
TYPED_TEST_P(LinkConformance, DestroyingABareLinkEndsTheOther) {
  for (const bool first : {true, false}) {
    auto [near, far] = this->factory.make();
    PacketLink left(std::move(first ? near : far), numbered_rules(), kEpoch);
    (first ? far : near).reset();
    const auto message = left.receive(numbered(0), 0);
    ASSERT_FALSE(message.ok());
    EXPECT_FALSE(message.error().message.empty()) << "no reason given";
  }
}

TYPED_TEST_P(LinkConformance, LosesNothingBetweenBusyThreads) {
  constexpr uint64_t kMessages = 2000;
  this->connect();
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
    this->connect();
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
    EXPECT_TRUE(fails_with(this->lower->receive(numbered(received), 0), "enough for today"));
  }
}

REGISTER_TYPED_TEST_SUITE_P(LinkConformance, CarriesPacketsBothWays, DoesNotLetOneDirectionHoldUpTheOther,
                            CarriesLargeAndEmptyPayloadsIntact, CloseWakesReceiversThatWait, CloseWakesASenderThatWaits,
                            DeliversWhatWasSentBeforeTheCloseThenTheReason, KeepsTheFirstReasonAtBothEnds,
                            DestroyingAnEndClosesTheOther, DestroyingABareLinkEndsTheOther,
                            LosesNothingBetweenBusyThreads, ACloseAmidTrafficStopsEveryoneAndTearsNothing);

}  // namespace thinpipe
