// A boundary's end between its threads: who waits for what, and what an interrupt, a close or room wakes up.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "net/packet_link.h"
#include "net/packet_links.h"

namespace thinpipe {
namespace {

TEST_F(PacketLinkTest, WaitsForAPacketThatComesLater) {
  link->enter(kEpoch, kStep);
  std::latch waiting(1);
  std::thread compute([&] {
    waiting.count_down();
    expect_received(forward(kEpoch, kStep, 2));
  });
  waiting.wait();
  peer_sends(forward(kEpoch, kStep, 1));  // not that one
  peer_sends(forward(kEpoch, kStep, 2));
  compute.join();
}

TEST_F(PacketLinkTest, AnInterruptWakesAReceiverThatWaits) {
  link->enter(kEpoch, kStep);
  std::latch waiting(1);
  std::thread compute([&] {
    waiting.count_down();
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 0), kBasisVersion), "epoch 6: stage 1 was lost"));
  });
  waiting.wait();
  link->interrupt(kEpoch + 1, "epoch 6: stage 1 was lost");
  compute.join();
  link->enter(kEpoch + 1, kStep);
  await_arrivals(kEpoch + 1);  // it works on
}

TEST_F(PacketLinkTest, AnInterruptHoldsUntilItsEpochIsEntered) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  await_arrivals();
  link->interrupt(kEpoch + 2, "the first word");
  link->interrupt(kEpoch + 2, "said again");
  link->interrupt(kEpoch + 1, "late news");
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 0), kBasisVersion), "the first word"));
    EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 0), {}, 0, 0, 0), "the first word"));
  }
}

TEST_F(PacketLinkTest, AnInterruptEndsWithItsEpochAndDoesNotReachLaterOnes) {
  link->enter(kEpoch, kStep);
  link->interrupt(kEpoch + 2, "the first word");
  link->enter(kEpoch + 1, kStep);
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch + 1, kStep, 0), kBasisVersion), "the first word"));
  link->enter(kEpoch + 2, kStep);
  link->interrupt(kEpoch + 2, "late news");
  peer_sends(forward(kEpoch + 2, kStep, 0));
  expect_received(forward(kEpoch + 2, kStep, 0));
  EXPECT_TRUE(link->send(forward(kEpoch + 2, kStep, 0), {}, 0, 0, 0).ok());
}

TEST_F(PacketLinkTest, TellsWhyTheOtherEndClosed) {
  link->enter(kEpoch, kStep);
  std::latch waiting(1);
  std::thread compute([&] {
    waiting.count_down();
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 0), kBasisVersion), "enough for today"));
  });
  waiting.wait();
  peer->close("enough for today");
  compute.join();
  EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 0), {}, 0, 0, 0), "enough for today"));
}

TEST_F(PacketLinkTest, DeliversWhatArrivedBeforeTheClose) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  peer->close("enough for today");
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 1), kBasisVersion), "enough for today"));
  expect_received(forward(kEpoch, kStep, 0));
  link->enter(kEpoch, kStep + 1);
  expect_received(forward(kEpoch, kStep + 1, 0));
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep + 1, 1), kBasisVersion), "enough for today"));
}

TEST_F(PacketLinkTest, DestroyingItTellsTheOtherEnd) {
  link.reset();
  EXPECT_TRUE(fails_with(peer->receive(), "boundary 2: the stage at the other end has left"));
}

TEST_F(PacketLinkTest, ReceivesWhileTheComputeThreadDoesSomethingElse) {
  auto [near, far] = make_memory_link(1, 1);
  const PacketLink slow(std::move(near), test_rules(), kEpoch);
  // Room for one message in the link: the sends wait for ever unless somebody takes them.
  for (const auto& tag : tags_of(kEpoch, kStep)) ASSERT_TRUE(far->send(packet_of(tag)).ok());
}

TEST_F(PacketLinkTest, TakesAnEvaluationNoFasterThanItIsReceived) {
  constexpr int64_t kCount = 300, kInTheLink = 2;
  auto rules = test_rules();
  rules.eval_microbatches = kCount;
  auto [near, far] = make_memory_link(kInTheLink, kInTheLink);
  PacketLink slow(std::move(near), rules, kEpoch);
  slow.enter(kEpoch, kStep);
  const auto tag_of = [](int64_t number) { return PacketTag{kEpoch, kStep, number, PacketKind::kEvalForward}; };
  std::atomic<uint64_t> sent = 0;
  std::thread fast([&, &far = far] {
    for (; sent < kCount; ++sent) EXPECT_TRUE(far->send(packet_of(tag_of(static_cast<int64_t>(sent)))).ok());
  });
  while (sent < PacketLink::kEvaluationAhead + kInTheLink) std::this_thread::yield();
  for (int64_t number = 0; number < kCount; ++number) {
    EXPECT_LE(sent.load(), static_cast<uint64_t>(number) + PacketLink::kEvaluationAhead + kInTheLink);
    EXPECT_TRUE(slow.receive(tag_of(number), kBasisVersion).ok());
  }
  fast.join();
}

TEST_F(PacketLinkTest, AnEvaluationThatBecomesOldMakesRoom) {
  auto [near, far] = make_memory_link(100, 100);
  auto rules = test_rules();
  rules.eval_microbatches = 100;
  PacketLink slow(std::move(near), rules, kEpoch);
  slow.enter(kEpoch, kStep);
  for (int64_t number = 0; number < 50; ++number) {
    ASSERT_TRUE(far->send(packet_of({kEpoch, kStep, number, PacketKind::kEvalForward})).ok());
  }
  ASSERT_TRUE(far->send(packet_of(forward(kEpoch, kStep + 1, 0))).ok());
  slow.enter(kEpoch, kStep + 1);
  EXPECT_TRUE(slow.receive(forward(kEpoch, kStep + 1, 0), kBasisVersion).ok());
}

// Its other end takes nothing: only the close can end the wait.
TEST_F(PacketLinkTest, CloseEndsASendThatWaitsForRoom) {
  auto [near, far] = make_memory_link(1, 1);
  PacketLink end(std::move(near), test_rules(), kEpoch);
  end.enter(kEpoch, kStep);
  std::thread sender([&] {
    Status sent;
    for (int64_t number = 0; sent.ok() && number < 4; ++number) {
      const auto tag = forward(kEpoch, kStep, number);
      sent = end.send(tag, payload_of(tag), 4, 6, kBasisVersion);
    }
    EXPECT_TRUE(fails_with(sent, "epoch 6 has begun"));
  });
  while (end.meter().payload_bytes_sent == 0) std::this_thread::yield();
  end.close("epoch 6 has begun");
  sender.join();
}

TEST_F(PacketLinkTest, TwoEndsRunStepsAndEpochsAgainstEachOther) {
  auto [near, far] = make_memory_link(3, 2);
  PacketLink upper(std::move(near), test_rules(), 0);
  PacketLink lower(std::move(far), test_rules(), 0);
  const auto run = [](PacketLink& end, PacketKind out, PacketKind in) {
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      // Every epoch is abandoned in its last step, after a different number of messages.
      for (int64_t step = 0; step < 20; ++step) {
        end.enter(epoch, step);
        const int64_t count = step == 19 ? static_cast<int64_t>(epoch % 4) : 4;
        for (int64_t microbatch = 0; microbatch < count; ++microbatch) {
          const PacketTag sent{epoch, step, microbatch, out};
          const PacketTag wanted{epoch, step, microbatch, in};
          ASSERT_TRUE(end.send(sent, payload_of(sent), 4, 6, step).ok());
          const auto payload = end.receive(wanted, step);
          ASSERT_TRUE(payload.ok()) << payload.error().message;
          ASSERT_EQ(payload.value(), payload_of(wanted));
        }
      }
    }
  };
  std::thread above([&] { run(upper, PacketKind::kForward, PacketKind::kBackward); });
  std::thread below([&] { run(lower, PacketKind::kBackward, PacketKind::kForward); });
  above.join();
  below.join();
}

}  // namespace
}  // namespace thinpipe
