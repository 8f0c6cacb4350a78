// A boundary's end: what it carries, holds, drops and refuses. packet_link_waits_test.cc tests waiting and waking.
#include "net/packet_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>

#include "net/packet_links.h"

namespace thinpipe {
namespace {

size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(PacketLinkTest, AnEndHasTwoThreadsShapedOrNot) {
  const size_t before = threads_of_this_process();
  auto [near, far] = make_memory_link();
  const PacketLink upper(std::move(near), test_rules(), kEpoch);
  const PacketLink lower(std::move(far), test_rules(), kEpoch, {.delay = std::chrono::hours(1)});
  EXPECT_EQ(threads_of_this_process(), before + 4);
}

TEST_F(PacketLinkTest, DeliversByTagInAnyOrder) {
  link->enter(kEpoch, kStep);
  auto tags = tags_of(kEpoch, kStep);
  for (const auto& tag : tags) peer_sends(tag);
  std::reverse(tags.begin(), tags.end());
  for (const auto& tag : tags) expect_received(tag);
}

TEST_F(PacketLinkTest, DropsAndCountsAnOlderEpochOrStep) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch - 1, kStep, 0));
  peer_sends(forward(0, kStep + 100, 0));
  peer_sends(forward(kEpoch, kStep - 1, 0));
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  EXPECT_EQ(link->meter().dropped_old, 3u);
}

TEST_F(PacketLinkTest, DropsHeldPacketsThatBecomeOld) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  await_arrivals();
  EXPECT_EQ(link->meter().dropped_old, 0u);
  link->enter(kEpoch, kStep + 1);
  EXPECT_EQ(link->meter().dropped_old, 1u);
  link->enter(kEpoch + 1, kStep);
  EXPECT_EQ(link->meter().dropped_old, 2u);
  peer_sends(forward(kEpoch + 1, kStep, 0));
  expect_received(forward(kEpoch + 1, kStep, 0));
}

TEST_F(PacketLinkTest, HoldsTheNextStepUntilItIsEntered) {
  link->enter(kEpoch, kStep);
  for (const auto& tag : tags_of(kEpoch, kStep + 1)) peer_sends(tag);
  for (const auto& tag : tags_of(kEpoch, kStep)) peer_sends(tag);
  for (const auto& tag : tags_of(kEpoch, kStep)) expect_received(tag);
  link->enter(kEpoch, kStep + 1);
  for (const auto& tag : tags_of(kEpoch, kStep + 1)) expect_received(tag);
}

TEST_F(PacketLinkTest, HoldsAnyStepBeforeTheFirstIsEntered) {
  peer_sends(forward(kEpoch, kStep, 0));
  peer_sends(forward(kEpoch, kStep + 1, 0));
  await_arrivals();
  link->enter(kEpoch, kStep);
  expect_received(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep + 1, 0));
}

TEST_F(PacketLinkTest, FailsTwoStepsOrAnEpochAhead) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep + 2, 0));
  expect_failure("refused a packet of step 12 in step 10; at most the next step's may come");

  connect();
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch + 1, kStep, 0));
  expect_failure("refused a packet of epoch 6 in epoch 5, which has its own links");
}

TEST_F(PacketLinkTest, HeldPacket_TwoStepsAheadOfTheFirstEntered_Fails) {
  peer_sends(forward(kEpoch, kStep + 2, 0));
  await_arrivals();
  link->enter(kEpoch, kStep);
  expect_failure("a packet of epoch 5, step 12 had come before step 10; at most the next step's may");
}

TEST_F(PacketLinkTest, SurvivesTheLargestEpochAndStep) {
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
  const auto ahead = forward(kEpoch, kStep + 1, 0);
  for (int time = 0; time < 2; ++time) {
    peer_sends(tag);
    peer_sends(ahead);
  }
  await_arrivals();
  EXPECT_EQ(link->meter().dropped_repeated, 2u);
  expect_received(tag);
  peer_sends(tag);  // received before
  await_arrivals();
  EXPECT_EQ(link->meter().dropped_repeated, 3u);
  link->enter(kEpoch, kStep + 1);
  peer_sends(tag);
  await_arrivals(kEpoch, kStep + 1);
  EXPECT_EQ(link->meter().dropped_repeated, 3u);
  EXPECT_EQ(link->meter().dropped_old, 1u);
}

TEST_F(PacketLinkTest, FloodOfOnePacket_FailsTheLink) {
  link->enter(kEpoch, kStep);
  for (int time = 0; time < 1100; ++time) peer_sends(forward(kEpoch, kStep, 0));
  expect_failure("after 1000 late or repeated ones");
}

TEST_F(PacketLinkTest, FloodOfLatePackets_FailsTheLink) {
  link->enter(kEpoch, kStep);
  for (int time = 0; time < 1100; ++time) peer_sends(forward(kEpoch, kStep - 1, 0));
  expect_failure("after 1000 late or repeated ones");
}

TEST_F(PacketLinkTest, StepRunAgainInTheNextEpoch_IsNotARepetition) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  link->enter(kEpoch + 1, kStep);
  peer_sends(forward(kEpoch + 1, kStep, 0));
  expect_received(forward(kEpoch + 1, kStep, 0));
  EXPECT_EQ(link->meter().dropped_repeated, 0u);
}

TEST_F(PacketLinkTest, FailsOnAFrameThatIsRefused) {
  ASSERT_TRUE(peer->write({}));
  expect_failure("refused a frame of kind 0, where 3 (packet) or 4 (last word) may come");

  connect();
  ASSERT_TRUE(peer->write(packet_frame(forward(kEpoch, kStep, 4), {}, 0)));
  expect_failure("refused a packet with microbatch 4; a step has 4");
}

TEST_F(PacketLinkTest, AfterARefusedFrame_IgnoresTheRest) {
  auto [near, far] = make_memory_link();
  ASSERT_TRUE(far->write({}));
  ASSERT_TRUE(far->write(frame_of(forward(kEpoch, kStep, 0))));
  PacketLink late(std::move(near), test_rules(), kEpoch);
  late.enter(kEpoch, kStep);
  EXPECT_TRUE(closed_with(*far, "refused a frame of kind 0"));
  EXPECT_TRUE(fails_with(late.receive(forward(kEpoch, kStep, 0), kBasisVersion), "refused a frame of kind 0"));
  far.reset();
}

TEST_F(PacketLinkTest, PacketOfAnotherBasisVersion_FailsTheLinkWhenItIsReceived) {
  link->enter(kEpoch, kStep);
  peer_sends(forward(kEpoch, kStep, 0));
  EXPECT_FALSE(link->failed());
  EXPECT_TRUE(fails_with(link->receive(forward(kEpoch, kStep, 0), kBasisVersion + 1),
                         "boundary 2: refused a packet: the forward packet of epoch 5, step 10, microbatch 0 is of "
                         "basis version 3; this stage is at version 4"));
  EXPECT_TRUE(link->failed());
  EXPECT_TRUE(closed_with(*peer, "is of basis version 3"));
}

// Only their number bounds the packets of an epoch that is not entered yet.
TEST_F(PacketLinkTest, HoldsTwoStepsAheadAndFailsOnMore) {
  for (uint64_t number = 0; number < kMostHeld; ++number) {
    peer_sends(forward(kEpoch, kStep + static_cast<int64_t>(number), 0));
  }
  peer_sends(forward(kEpoch, kStep + 1000, 0));
  EXPECT_TRUE(closed_with(*peer, "when 34 are waiting here; two steps have no more"));
  EXPECT_FALSE(link->send(forward(kEpoch, kStep, 0), {}, 0).ok());
}

TEST_F(PacketLinkTest, PayloadAboveTheSizeOfItsKind_FailsTheLink) {
  auto [near, far] = make_memory_link();
  auto rules = test_rules();
  rules.most_bytes = {8, 4, 0, 8};
  PacketLink small(std::move(near), rules, kEpoch);
  small.enter(kEpoch, kStep);
  const PacketTag fits{kEpoch, kStep, 0, PacketKind::kBackward}, larger{kEpoch, kStep, 1, PacketKind::kBackward};
  ASSERT_TRUE(far->write(packet_frame(fits, test_message(1, 1, 4), kBasisVersion)));
  EXPECT_TRUE(small.receive(fits, kBasisVersion).ok());
  ASSERT_TRUE(far->write(packet_frame(larger, test_message(1, 1, 5), kBasisVersion)));
  EXPECT_TRUE(closed_with(*far, "refused a packet of kind backward with 5 bytes, where at most 4 may come"));
  far.reset();
}

// Two whole steps of the current epoch are never too many.
TEST_F(PacketLinkTest, HoldsAllOfTwoSteps) {
  link->enter(kEpoch, kStep);
  for (const int64_t step : {kStep, kStep + 1}) {
    for (const auto& tag : tags_of(kEpoch, step)) peer_sends(tag);
  }
  peer_closes("all has been sent");
  for (const int64_t step : {kStep, kStep + 1}) {
    link->enter(kEpoch, step);
    for (const auto& tag : tags_of(kEpoch, step)) expect_received(tag);
  }
  EXPECT_EQ(link->meter().dropped_old + link->meter().dropped_repeated, 0u);
}

using PacketLinkDeathTest = PacketLinkTest;

TEST_F(PacketLinkDeathTest, EnteringAnOlderStepOrReceivingTheImpossible_Aborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  link->enter(kEpoch, kStep);
  EXPECT_DEATH(link->enter(kEpoch, kStep - 1), "from epoch 5, step 10 back to epoch 5, step 9");
  EXPECT_DEATH(link->enter(kEpoch - 1, kStep), "from epoch 5, step 10 back to epoch 4, step 10");
  EXPECT_DEATH((void)link->receive(forward(kEpoch, kStep - 1, 0), 0),
               "waiting for the forward packet of epoch 5, step 9");
  EXPECT_DEATH((void)link->receive(forward(kEpoch, kStep, 4), 0),
               "waiting for a packet with microbatch 4; a step has 4");
  EXPECT_DEATH((void)link->send(forward(kEpoch, kStep, 4), {}, 0), "sending a packet with microbatch 4");
  peer_sends(forward(kEpoch, kStep, 0));
  expect_received(forward(kEpoch, kStep, 0));
  EXPECT_DEATH((void)link->receive(forward(kEpoch, kStep, 0), 0), "microbatch 0 a second time");
}

}  // namespace
}  // namespace thinpipe
