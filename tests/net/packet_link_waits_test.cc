// The threads of a boundary's end: who waits for what, and whom an interrupt, a close or room wakes.
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
  peer_sends(forward(kEpoch, kStep, 1));  // another one
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
  await_arrivals(kEpoch + 1);  // it still works
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
    EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 0), {}, 0), "the first word"));
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
  EXPECT_TRUE(link->send(forward(kEpoch + 2, kStep, 0), {}, 0).ok());
}

TEST_F(PacketLinkTest, DeliversWhatArrivedBeforeTheClose) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  peer_closes("enough for today");
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 1), kBasisVersion), "enough for today"));
  expect_received(forward(kEpoch, kStep, 0));
  link->enter(kEpoch, kStep + 1);
  expect_received(forward(kEpoch, kStep + 1, 0));
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep + 1, 1), kBasisVersion), "enough for today"));
}

TEST_F(PacketLinkTest, ReceivesWhileTheComputeThreadDoesSomethingElse) {
  // More than a memory link holds: the writes wait forever unless somebody reads.
  for (const auto& tag : tags_of(kEpoch, kStep)) peer_sends(tag);
}

TEST_F(PacketLinkTest, TakesAnEvaluationNoFasterThanItIsReceived) {
  constexpr uint64_t kCount = 300, kInTheLink = 2;
  auto [near, far] = make_memory_link();
  PacketLink slow(std::move(near), numbered_rules(), kEpoch);
  slow.enter(kEpoch, kStep);
  std::atomic<uint64_t> sent = 0;
  std::thread fast([&, &peer_of_slow = *far] {
    for (; sent < kCount; ++sent) EXPECT_TRUE(peer_of_slow.write(packet_frame(numbered(sent), {}, 0)));
  });
  while (sent < PacketLink::kEvaluationAhead + kInTheLink) std::this_thread::yield();
  for (uint64_t number = 0; number < kCount; ++number) {
    EXPECT_LE(sent.load(), number + PacketLink::kEvaluationAhead + kInTheLink);
    EXPECT_TRUE(slow.receive(numbered(number), 0).ok());
  }
  fast.join();
  far.reset();
}

TEST_F(PacketLinkTest, OutdatedEvaluation_MakesRoom) {
  auto [near, far] = make_memory_link();
  PacketLink slow(std::move(near), numbered_rules(), kEpoch);
  slow.enter(kEpoch, kStep);
  std::thread fast([&peer_of_slow = *far] {
    for (uint64_t number = 0; number < 50; ++number)
      EXPECT_TRUE(peer_of_slow.write(packet_frame(numbered(number), {}, 0)));
    EXPECT_TRUE(peer_of_slow.write(frame_of(forward(kEpoch, kStep + 1, 0))));
  });
  slow.enter(kEpoch, kStep + 1);
  EXPECT_TRUE(slow.receive(forward(kEpoch, kStep + 1, 0), kBasisVersion).ok());
  fast.join();
  far.reset();
}

// The other end reads nothing: the outbox holds M + 1, the memory link two, and the sender one.
TEST_F(PacketLinkTest, AFullOutboxMakesSendWaitUntilAnInterruptOrAClose) {
  for (const bool interrupts : {true, false}) {
    connect();
    link->enter(kEpoch, kStep);
    std::atomic<uint64_t> sent = 0;
    std::thread sender([&] {
      Status status;
      while (status.ok()) {
        status = link->send(forward(kEpoch, kStep, 0), {}, 0);
        if (status.ok()) ++sent;
      }
      EXPECT_TRUE(fails_with(status, "epoch 6 has begun"));
    });
    while (sent < 8) std::this_thread::yield();
    // Time for a sender that fails to wait.
    for (int turn = 0; turn < 100; ++turn) std::this_thread::yield();
    if (interrupts) link->interrupt(kEpoch + 1, "epoch 6 has begun");
    if (!interrupts) link->close("epoch 6 has begun");
    sender.join();
    EXPECT_EQ(sent.load(), 8u);
  }
}

// Every epoch has its own links and is abandoned in its last step, after a different number of messages.
TEST_F(PacketLinkTest, TwoEndsRunStepsAgainstEachOther) {
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    auto [near, far] = make_memory_link();
    PacketLink upper(std::move(near), test_rules(), epoch);
    PacketLink lower(std::move(far), test_rules(), epoch);
    const auto run = [epoch](PacketLink& end, PacketKind out, PacketKind in) {
      for (int64_t step = 0; step < 20; ++step) {
        end.enter(epoch, step);
        const int64_t count = step == 19 ? static_cast<int64_t>(epoch % 4) : 4;
        for (int64_t microbatch = 0; microbatch < count; ++microbatch) {
          const PacketTag sent{epoch, step, microbatch, out};
          const PacketTag wanted{epoch, step, microbatch, in};
          ASSERT_TRUE(end.send(sent, payload_of(sent), step).ok());
          const auto payload = end.receive(wanted, step);
          ASSERT_TRUE(payload.ok()) << payload.error().message;
          EXPECT_EQ(bytes_of(payload.value()), payload_of(wanted));
        }
      }
    };
    std::thread above([&, &upper = upper] { run(upper, PacketKind::kForward, PacketKind::kBackward); });
    run(lower, PacketKind::kBackward, PacketKind::kForward);
    above.join();
  }
}

}  // namespace
}  // namespace thinpipe
