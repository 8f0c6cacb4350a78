// A packet in a frame: its bytes on the wire, and refused ones.
#include "net/packet.h"

#include <gtest/gtest.h>

#include <limits>

#include "net/packet_links.h"

namespace thinpipe {
namespace {

std::string hex_of(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

::testing::AssertionResult refused(const wire::Frame& frame, std::string_view reason) {
  const auto tag = packet_tag(frame, test_rules());
  if (tag.ok()) return ::testing::AssertionFailure() << "accepted";
  if (tag.error().message.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "several lines";
  return holds(tag.error(), reason);
}

::testing::AssertionResult refused(const PacketTag& tag, std::string_view reason) {
  return refused(packet_frame(tag, {}, 0), reason);
}

TEST(Packet, ComesBackAsItWasSent) {
  for (const auto& tag : tags_of(kEpoch, kStep)) {
    for (const size_t bytes : {0, 1, 64}) {
      wire::Frame frame;
      ASSERT_TRUE(frame.ParseFromString(packet_frame(tag, test_message(1, bytes, bytes), -1).SerializeAsString()));
      EXPECT_EQ(packet_tag(frame, test_rules()).take(), tag);
      EXPECT_EQ(frame.packet().basis_version(), -1);
      EXPECT_EQ(bytes_of(frame.packet().payload()), test_message(1, bytes, bytes));
    }
  }
}

// Written by hand from docs/wire.md and protobuf.
TEST(Packet, HasTheBytesOfTheSpecification) {
  const PacketTag tag{.epoch = 300, .step = 9, .microbatch = 2, .kind = PacketKind::kBackward};
  EXPECT_EQ(hex_of(packet_frame(tag, MessageBytes(3, std::byte{7}), 4).SerializeAsString()),
            "1a10"    // packet, 16 bytes
            "08ac02"  // epoch
            "1009"    // step
            "1802"    // microbatch
            "2001"    // kind
            "2804"    // basis version
            "3203"    // payload, 3 bytes
            "070707");
}

TEST(Packet, AFrameIsLittleLargerThanItsPayload) {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  const PacketTag largest{std::numeric_limits<uint64_t>::max(), kMost, kMost, PacketKind::kEvalForward};
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{1} << 20}) {
    EXPECT_LE(packet_frame(largest, MessageBytes(bytes), -1).ByteSizeLong(), bytes + kFrameOverheadBytes);
  }
  // A realistic size.
  EXPECT_LE(packet_frame({3, 70000, 15, PacketKind::kForward}, MessageBytes(22000), 12).ByteSizeLong(), 22000u + 22);
}

TEST(Packet, Tag_OutsideTheRules_IsRefused) {
  const auto unknown = static_cast<PacketKind>(4);
  EXPECT_TRUE(refused(PacketTag{.kind = unknown}, "a packet with kind 4; 0 (forward), 1 (backward)"));
  EXPECT_TRUE(refused(PacketTag{.step = -1}, "a packet with step -1; steps count from 0"));
  EXPECT_TRUE(refused(forward(1, 1, 4), "a packet with microbatch 4; a step has 4, counted from 0"));
  EXPECT_TRUE(refused(forward(1, 1, -1), "a packet with microbatch -1; a step has 4"));
  EXPECT_TRUE(refused(PacketTag{.microbatch = 1, .kind = PacketKind::kEndOfStep}, "the end of a step has 1"));
  EXPECT_TRUE(refused(PacketTag{.microbatch = 6, .kind = PacketKind::kEvalForward}, "an evaluation has 6"));
  wire::Frame frame = frame_of(forward(1, 1, 0));
  for (const int kind : {-1, 256, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    frame.mutable_packet()->set_kind(static_cast<wire::Packet::Kind>(kind));  // an open enum: allows any number
    EXPECT_TRUE(refused(frame, "a packet with kind 255")) << kind;
  }
}

TEST(Packet, RefusesAFrameOfAnotherKind) {
  wire::Frame frame;
  EXPECT_TRUE(refused(frame, "a frame of kind 0, where 3 (packet) or 4 (last word) may come"));
  frame.mutable_hello();
  EXPECT_TRUE(refused(frame, "a frame of kind 1, where"));
  ASSERT_TRUE(frame.ParseFromString(std::string("\x7a\x02hi", 4)));  // a field that this build does not know
  EXPECT_TRUE(refused(frame, "a frame of kind 0, where"));
}

// Any bytes are either a packet that keeps the rules or refused.
TEST(Packet, SurvivesEveryFlippedBitAndTruncation) {
  const auto bytes = frame_of(forward(3, 70000, 1)).SerializeAsString();
  const auto try_out = [](const std::string& damaged) {
    wire::Frame frame;
    if (!frame.ParseFromString(damaged)) return;
    const auto tag = packet_tag(frame, test_rules());
    if (tag) {
      EXPECT_EQ(tag_problem(tag.value(), test_rules()), "");
    }
  };
  for (size_t at = 0; at < bytes.size(); ++at) {
    try_out(bytes.substr(0, at));
    try_out(bytes.substr(at));
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      try_out(flipped);
    }
  }
}

TEST(Packet, LastWord_IsOneLineOfBoundedLength) {
  const auto frame = last_word_frame("first\nsecond" + std::string(5000, 'x'));
  EXPECT_TRUE(frame.last_word().starts_with("first second"));
  EXPECT_EQ(frame.last_word().size(), 1000u);
}

}  // namespace
}  // namespace thinpipe
