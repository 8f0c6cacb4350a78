// A boundary's end: what it holds, drops and refuses, and who wakes up when. The other end is mostly a bare Link, so
// that a test can send what no PacketLink would.
#include "net/packet_link.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "net/link_conformance.h"
#include "net/memory_link.h"

namespace thinpipe {
namespace {

constexpr uint64_t kEpoch = 5;
constexpr int64_t kStep = 10;
constexpr int64_t kBasisVersion = 3;
constexpr uint64_t kMostHeld = 2 * (2 * 4 + 1 + 6);  // per epoch, by the rules below

PacketRules test_rules() {
  return {.run = run_tag("a run"),
          .boundary = 2,
          .boundary_kind = 0,
          .pack = 5,
          .max_payload_bytes = 64,
          .microbatches = 4,
          .eval_microbatches = 6};
}

PacketTag forward(uint64_t epoch, int64_t step, int64_t microbatch) {
  return {epoch, step, microbatch, PacketKind::kForward};
}

// Every tag of a step, in an order in which a stage might send them.
std::vector<PacketTag> tags_of(uint64_t epoch, int64_t step) {
  std::vector<PacketTag> tags;
  for (int64_t microbatch = 0; microbatch < 6; ++microbatch) {
    tags.push_back({epoch, step, microbatch, PacketKind::kEvalForward});
  }
  for (int64_t microbatch = 0; microbatch < 4; ++microbatch) {
    tags.push_back({epoch, step, microbatch, PacketKind::kForward});
    tags.push_back({epoch, step, microbatch, PacketKind::kBackward});
  }
  tags.push_back({epoch, step, 0, PacketKind::kBasis});
  return tags;
}

// Different for every tag.
MessageBytes payload_of(const PacketTag& tag) {
  const auto number = static_cast<uint64_t>(tag.step) * 64 + static_cast<uint64_t>(tag.microbatch) * 4;
  return test_message(tag.epoch, number + static_cast<uint64_t>(tag.kind), 24);
}

PacketHeader header_of(const PacketTag& tag) {
  const auto rules = test_rules();
  return {.run = rules.run,
          .tag = tag,
          .boundary = rules.boundary,
          .boundary_kind = rules.boundary_kind,
          .pack = rules.pack,
          .rows = 4,
          .cols = 6,
          .basis_version = kBasisVersion};
}

MessageBytes packet_of(const PacketTag& tag) { return encode_packet(header_of(tag), payload_of(tag)); }

class PacketLinkTest : public ::testing::Test {
 protected:
  PacketLinkTest() { connect(); }

  // At kEpoch, no step entered. Capacities above everything a test sends unless it reads on.
  void connect() {
    link.reset();
    auto [near, far] = make_memory_link(1000, 1000);
    peer = std::move(far);
    link = std::make_unique<PacketLink>(std::move(near), test_rules(), kEpoch);
  }

  void peer_sends(const PacketTag& tag) { EXPECT_TRUE(peer->send(packet_of(tag)).ok()); }

  // Until the link's thread has looked at so many packets; it may have failed instead.
  void await_packets(uint64_t count) {
    while (link->healthy() && link->meter().packets_received < count) std::this_thread::yield();
    EXPECT_EQ(link->meter().packets_received, count) << link->failure();
  }

  void expect_received(const PacketTag& tag) {
    const auto payload = link->receive(tag, kBasisVersion);
    ASSERT_TRUE(payload.ok()) << payload.error().message;
    EXPECT_EQ(payload.value(), payload_of(tag)) << to_string(tag);
  }

  // The link fails for this reason, and both ends know it.
  void expect_failure(std::string_view reason) {
    EXPECT_TRUE(fails_with(peer->receive(), reason));
    EXPECT_FALSE(link->healthy());
    EXPECT_TRUE(holds({link->failure()}, reason));
    EXPECT_TRUE(holds({link->failure()}, "boundary 2: "));
    EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 3), {}, 0, 0, 0), reason));
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 3), kBasisVersion), reason));
  }

  std::unique_ptr<Link> peer;
  std::unique_ptr<PacketLink> link;
};

TEST_F(PacketLinkTest, CarriesBothDirectionsAndCountsThem) {
  auto [near, far] = make_memory_link(10, 10);
  PacketLink upper(std::move(near), test_rules(), kEpoch);
  PacketLink lower(std::move(far), test_rules(), kEpoch);
  for (auto* end : {&upper, &lower}) end->enter(kEpoch, kStep);
  const auto down = forward(kEpoch, kStep, 1);
  const PacketTag up{kEpoch, kStep, 1, PacketKind::kBackward};
  ASSERT_TRUE(upper.send(down, MessageBytes(30, std::byte{1}), 5, 6, kBasisVersion).ok());
  ASSERT_TRUE(lower.send(up, MessageBytes(20, std::byte{2}), 5, 4, kBasisVersion).ok());
  EXPECT_EQ(lower.receive(down, kBasisVersion, 5, 6).take(), MessageBytes(30, std::byte{1}));
  EXPECT_EQ(upper.receive(up, kBasisVersion, 5, 4).take(), MessageBytes(20, std::byte{2}));
  EXPECT_EQ(upper.meter(), (PacketMeter{1, 30, 1, 20, 0, 0}));
  EXPECT_EQ(lower.meter(), (PacketMeter{1, 20, 1, 30, 0, 0}));
  EXPECT_TRUE(upper.healthy());
  EXPECT_EQ(upper.failure(), "");
}

TEST_F(PacketLinkTest, DoesNotCopyAPayloadWithRoomForTheTrailer) {
  auto [near, far] = make_memory_link(1, 1);
  PacketLink upper(std::move(near), test_rules(), kEpoch);
  PacketLink lower(std::move(far), test_rules(), kEpoch);
  MessageBytes payload;
  payload.reserve(40 + kPacketHeaderBytes);
  payload.resize(40);
  const auto* bytes = payload.data();
  ASSERT_TRUE(upper.send(forward(kEpoch, kStep, 0), std::move(payload), 5, 8, 0).ok());
  lower.enter(kEpoch, kStep);
  EXPECT_EQ(lower.receive(forward(kEpoch, kStep, 0), 0).take().data(), bytes);
}

TEST_F(PacketLinkTest, DeliversByTagWhateverTheOrder) {
  link->enter(kEpoch, kStep);
  auto tags = tags_of(kEpoch, kStep);
  for (const auto& tag : tags) peer_sends(tag);
  std::reverse(tags.begin(), tags.end());
  for (const auto& tag : tags) expect_received(tag);
}

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

TEST_F(PacketLinkTest, DropsAndCountsAnOlderEpoch) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch - 1, kStep, 0));
  peer_sends(forward(0, kStep + 100, 0));
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  EXPECT_EQ(link->meter().dropped_old, 2u);
  EXPECT_EQ(link->meter().packets_received, 3u);
}

TEST_F(PacketLinkTest, DropsAndCountsAnOlderStep) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep - 1, 0));
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  EXPECT_EQ(link->meter().dropped_old, 1u);
}

TEST_F(PacketLinkTest, DropsWhatBecomesOldWhileItIsHeld) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  peer_sends(forward(kEpoch + 1, kStep, 0));
  await_packets(3);
  EXPECT_EQ(link->meter().dropped_old, 0u);
  link->enter(kEpoch, kStep + 1);
  EXPECT_EQ(link->meter().dropped_old, 1u);
  link->enter(kEpoch + 1, kStep);
  EXPECT_EQ(link->meter().dropped_old, 2u);
  expect_received(forward(kEpoch + 1, kStep, 0));
}

TEST_F(PacketLinkTest, DropsTheNextEpochWhenItIsPassedOver) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch + 1, kStep, 0));
  await_packets(2);
  link->enter(kEpoch + 2, kStep);
  EXPECT_EQ(link->meter().dropped_old, 2u);
  peer_sends(forward(kEpoch + 2, kStep, 0));
  expect_received(forward(kEpoch + 2, kStep, 0));
}

TEST_F(PacketLinkTest, HoldsTheNextStepUntilItIsEntered) {
  link->enter(kEpoch, kStep);
  for (const auto& tag : tags_of(kEpoch, kStep + 1)) peer_sends(tag);
  for (const auto& tag : tags_of(kEpoch, kStep)) peer_sends(tag);
  for (const auto& tag : tags_of(kEpoch, kStep)) expect_received(tag);
  link->enter(kEpoch, kStep + 1);
  for (const auto& tag : tags_of(kEpoch, kStep + 1)) expect_received(tag);
}

TEST_F(PacketLinkTest, HoldsTheNextEpochUntilItIsEnteredAlsoWithAnEarlierStep) {
  link->enter(kEpoch, kStep);
  for (const auto& tag : tags_of(kEpoch + 1, 0)) peer_sends(tag);
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  link->enter(kEpoch + 1, 0);
  for (const auto& tag : tags_of(kEpoch + 1, 0)) expect_received(tag);
  EXPECT_EQ(link->meter().dropped_old, 0u);
}

TEST_F(PacketLinkTest, HoldsTheNextEpochAlsoWithAMuchLaterStep) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch + 1, kStep + 100, 0));
  await_packets(1);
  link->enter(kEpoch + 1, kStep + 100);
  expect_received(forward(kEpoch + 1, kStep + 100, 0));
}

TEST_F(PacketLinkTest, HoldsAnyStepBeforeTheFirstIsEntered) {
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  await_packets(2);
  link->enter(kEpoch, kStep);
  expect_received(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep + 1, 0));
  EXPECT_TRUE(link->healthy()) << link->failure();
}

TEST_F(PacketLinkTest, FailsTwoStepsAhead) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep + 2, 0));
  expect_failure("refused a packet of step 12 in step 10; at most the next step's may come");
}

TEST_F(PacketLinkTest, FailsTwoEpochsAhead) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch + 2, kStep, 0));
  expect_failure("refused a packet of epoch 7 in epoch 5; at most the next epoch's may come");
}

TEST_F(PacketLinkTest, FailsWhenWhatWasHeldTurnsOutToBeTwoStepsAhead) {
  peer_sends(forward(kEpoch, kStep + 2, 0));
  await_packets(1);
  link->enter(kEpoch, kStep);
  expect_failure("a packet of epoch 5, step 12 had come before step 10; at most the next step's may");
}

TEST_F(PacketLinkTest, SurvivesTheFarEndsOfTheNumbers) {
  constexpr auto kLastEpoch = std::numeric_limits<uint64_t>::max();
  constexpr auto kLastStep = std::numeric_limits<int64_t>::max();
  link->enter(kLastEpoch, kLastStep);
  peer_sends(forward(0, 0, 0));
  peer_sends(forward(kLastEpoch, 0, 0));
  peer_sends(forward(kLastEpoch, kLastStep, 0));
  expect_received(forward(kLastEpoch, kLastStep, 0));
  EXPECT_EQ(link->meter().dropped_old, 2u);
}

TEST_F(PacketLinkTest, DropsAndCountsARepeatedPacket) {
  link->enter(kEpoch, kStep);
  const auto tag = forward(kEpoch, kStep, 0);
  const auto ahead = forward(kEpoch + 1, kStep, 0);
  for (int time = 0; time < 2; ++time) {
    peer_sends(tag);
    peer_sends(ahead);
  }
  await_packets(4);
  EXPECT_EQ(link->meter().dropped_repeated, 2u);
  expect_received(tag);
  peer_sends(tag);  // received before
  await_packets(5);
  EXPECT_EQ(link->meter().dropped_repeated, 3u);
  link->enter(kEpoch, kStep + 1);
  peer_sends(tag);
  await_packets(6);
  EXPECT_EQ(link->meter().dropped_repeated, 3u);
  EXPECT_EQ(link->meter().dropped_old, 1u);
}

TEST_F(PacketLinkTest, AStepThatIsRunAgainInTheNextEpochIsNotARepetition) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  link->enter(kEpoch + 1, kStep);
  peer_sends(forward(kEpoch + 1, kStep, 0));
  expect_received(forward(kEpoch + 1, kStep, 0));
  EXPECT_EQ(link->meter().dropped_repeated, 0u);
}

TEST_F(PacketLinkTest, FailsOnWhatParsePacketRefuses) {
  link->enter(kEpoch, kStep);
  auto damaged = packet_of(forward(kEpoch, kStep, 0));
  damaged[3] ^= std::byte{1};
  ASSERT_TRUE(peer->send(std::move(damaged)).ok());
  expect_failure("refused a packet damaged on its way");

  connect();
  link->enter(kEpoch, kStep);
  auto header = header_of(forward(kEpoch, kStep, 0));
  header.boundary = 1;
  ASSERT_TRUE(peer->send(encode_packet(header, {})).ok());
  expect_failure("refused a packet of boundary 1; this is boundary 2");
}

TEST_F(PacketLinkTest, TakesNothingThatCameBehindWhatItRefused) {
  auto [near, far] = make_memory_link(1, 2);
  ASSERT_TRUE(far->send(MessageBytes(8)).ok());
  ASSERT_TRUE(far->send(packet_of(forward(kEpoch, kStep, 0))).ok());
  PacketLink late(std::move(near), test_rules(), kEpoch);
  late.enter(kEpoch, kStep);
  EXPECT_TRUE(fails_with(far->receive(), "refused a packet of 8 bytes"));
  EXPECT_TRUE(fails_with(late.receive(forward(kEpoch, kStep, 0), kBasisVersion), "refused a packet of 8 bytes"));
}

TEST_F(PacketLinkTest, ChecksBasisVersionAndShapeWhenAPacketIsReceived) {
  link->enter(kEpoch, kStep);
  for (int64_t microbatch = 0; microbatch < 4; ++microbatch) peer_sends(forward(kEpoch, kStep, microbatch));
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 0), kBasisVersion + 1),
                         "boundary 2: the forward packet of epoch 5, step 10, microbatch 0 is of basis version 3; this "
                         "stage is at version 4"));
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 1), kBasisVersion, 5, 6), "is of 4 x 6; 5 x 6 is right"));
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 2), kBasisVersion, 4, 7), "is of 4 x 6; 4 x 7 is right"));
  EXPECT_TRUE(link->receive(forward(kEpoch, kStep, 3), kBasisVersion, 4, 6).ok());
  EXPECT_TRUE(link->healthy());
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
  EXPECT_TRUE(link->healthy());
}

TEST_F(PacketLinkTest, AnInterruptHoldsUntilItsEpochIsEntered) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  await_packets(1);
  link->interrupt(kEpoch + 2, "the first word");
  link->interrupt(kEpoch + 2, "said again");
  link->interrupt(kEpoch + 1, "late news");
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 0), kBasisVersion), "the first word"));
    EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 0), {}, 0, 0, 0), "the first word"));
  }
  EXPECT_EQ(link->meter().packets_sent, 0u);
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
  EXPECT_FALSE(link->healthy());
  EXPECT_EQ(link->failure(), "enough for today");
  EXPECT_TRUE(fails_with(link->send(forward(kEpoch, kStep, 0), {}, 0, 0, 0), "enough for today"));
}

TEST_F(PacketLinkTest, DeliversWhatArrivedBeforeTheClose) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  peer->close("enough for today");
  while (link->healthy()) std::this_thread::yield();
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
  constexpr int64_t kCount = 300;
  auto rules = test_rules();
  rules.eval_microbatches = kCount;
  auto [near, far] = make_memory_link(2, 2);
  PacketLink slow(std::move(near), rules, kEpoch);
  slow.enter(kEpoch, kStep);
  const auto tag_of = [](int64_t number) { return PacketTag{kEpoch, kStep, number, PacketKind::kEvalForward}; };
  std::thread fast([&, &far = far] {
    for (int64_t number = 0; number < kCount; ++number) EXPECT_TRUE(far->send(packet_of(tag_of(number))).ok());
  });
  while (slow.meter().packets_received < PacketLink::kEvaluationAhead) std::this_thread::yield();
  for (int64_t number = 0; number < kCount; ++number) {
    ASSERT_LE(slow.meter().packets_received, static_cast<uint64_t>(number) + PacketLink::kEvaluationAhead);
    ASSERT_TRUE(slow.receive(tag_of(number), kBasisVersion).ok());
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
    ASSERT_FALSE(sent.ok());
    EXPECT_EQ(sent.error().message, "epoch 6 has begun");
  });
  while (end.meter().packets_sent < 1) std::this_thread::yield();
  end.close("epoch 6 has begun");
  sender.join();
  EXPECT_FALSE(end.healthy());
}

// What a neighbour sends of an epoch that is not entered has no other bound than its number.
TEST_F(PacketLinkTest, HoldsTwoStepsOfAnEpochAheadAndFailsOnMore) {
  for (const uint64_t epoch : {kEpoch, kEpoch + 1}) {
    connect();
    for (uint64_t number = 0; number < kMostHeld; ++number) {
      peer_sends(forward(epoch, kStep + static_cast<int64_t>(number), 0));
    }
    await_packets(kMostHeld);
    EXPECT_TRUE(link->healthy());
    peer_sends(forward(epoch, kStep + 1000, 0));
    EXPECT_TRUE(fails_with(peer->receive(), "when 30 of that epoch are waiting here; two steps have no more"));
    EXPECT_FALSE(link->healthy());
  }
}

// The current epoch's two steps, whole, are never too many, and leave the next epoch its share.
TEST_F(PacketLinkTest, HoldsAllOfTwoStepsInTwoEpochs) {
  link->enter(kEpoch, kStep);
  for (const uint64_t epoch : {kEpoch, kEpoch + 1}) {
    for (const int64_t step : {kStep, kStep + 1}) {
      for (const auto& tag : tags_of(epoch, step)) peer_sends(tag);
    }
  }
  await_packets(2 * kMostHeld);
  EXPECT_TRUE(link->healthy());
  EXPECT_EQ(link->meter().dropped_old + link->meter().dropped_repeated, 0u);
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
          const auto payload = end.receive(wanted, step, 4, 6);
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
  EXPECT_TRUE(upper.healthy()) << upper.failure();
  EXPECT_TRUE(lower.healthy()) << lower.failure();
  EXPECT_EQ(upper.meter().packets_sent, lower.meter().packets_received);
}

using PacketLinkDeathTest = PacketLinkTest;

TEST_F(PacketLinkDeathTest, GoingBackOrWaitingForWhatCannotComeIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  link->enter(kEpoch, kStep);
  EXPECT_DEATH(link->enter(kEpoch, kStep - 1), "from epoch 5, step 10 back to epoch 5, step 9");
  EXPECT_DEATH(link->enter(kEpoch - 1, kStep), "from epoch 5, step 10 back to epoch 4, step 10");
  EXPECT_DEATH((void)link->receive(forward(kEpoch, kStep - 1, 0), 0),
               "waiting for the forward packet of epoch 5, step 9");
  EXPECT_DEATH((void)link->receive(forward(kEpoch, kStep, 4), 0),
               "waiting for a packet with microbatch 4; a step has 4");
  EXPECT_DEATH((void)link->send(forward(kEpoch, kStep, 0), MessageBytes(65), 0, 0, 0), "65 payload bytes, at most 64");
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  EXPECT_DEATH((void)link->receive(forward(kEpoch, kStep, 0), 0), "microbatch 0 a second time");
}

}  // namespace
}  // namespace thinpipe
