// The bytes of a packet: written as docs/wire.md says, and refused when they are anything else.
#include "net/packet.h"

#include <gtest/gtest.h>

#include <functional>

#include "net/link_conformance.h"

namespace thinpipe {
namespace {

constexpr size_t kPayloadBytes = 37;

PacketRules test_rules() {
  return {.run = run_tag("a run"),
          .boundary = 2,
          .boundary_kind = 0,
          .pack = 5,
          .max_payload_bytes = 64,
          .microbatches = 4,
          .eval_microbatches = 6};
}

PacketHeader test_header() {
  const auto rules = test_rules();
  return {.run = rules.run,
          .tag = {.epoch = 3, .step = 70000, .microbatch = 1, .kind = PacketKind::kForward},
          .boundary = rules.boundary,
          .boundary_kind = rules.boundary_kind,
          .pack = rules.pack,
          .rows = 1024,
          .cols = 16,
          .basis_version = 12};
}

MessageBytes test_payload() { return test_message(1, 1, kPayloadBytes); }
MessageBytes test_packet() { return encode_packet(test_header(), test_payload()); }

std::string hex_of(const MessageBytes& bytes) {
  std::string hex;
  for (const std::byte byte : bytes) hex += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return hex;
}

::testing::AssertionResult refused(MessageBytes message, std::string_view reason, const PacketRules& rules) {
  const auto packet = parse_packet(std::move(message), rules);
  if (packet.ok()) return ::testing::AssertionFailure() << "accepted";
  if (packet.error().message.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "several lines";
  if (!packet.error().message.starts_with("a packet")) {
    return ::testing::AssertionFailure() << "'" << packet.error().message << "' does not begin with 'a packet'";
  }
  return holds(packet.error(), reason);
}

// A packet whose header somebody changed before it was written, so that its checksum is right.
::testing::AssertionResult refused(const std::function<void(PacketHeader&)>& change, std::string_view reason) {
  auto header = test_header();
  change(header);
  return refused(encode_packet(header, test_payload()), reason, test_rules());
}

TEST(Packet, ComesBackAsItWasSent) {
  for (const auto kind :
       {PacketKind::kForward, PacketKind::kBackward, PacketKind::kEndOfStep, PacketKind::kEvalForward}) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64}}) {
      auto header = test_header();
      header.tag.kind = kind;
      header.tag.microbatch = 0;
      header.basis_version = -1;
      const auto message = encode_packet(header, test_message(1, bytes, bytes));
      EXPECT_EQ(message.size(), bytes + kPacketHeaderBytes);
      const auto packet = parse_packet(message, test_rules());
      ASSERT_TRUE(packet.ok()) << packet.error().message;
      header.payload_bytes = static_cast<uint32_t>(bytes);
      header.checksum = packet.value().header.checksum;
      EXPECT_EQ(packet.value().header, header);
      EXPECT_EQ(packet.value().payload, test_message(1, bytes, bytes));
    }
  }
}

// By a few lines of Python (struct, zlib.crc32) that follow docs/wire.md.
TEST(Packet, HasTheBytesOfTheSpecification) {
  PacketHeader header{.tag = {.epoch = 0x0102030405060708, .step = 9, .microbatch = 2, .kind = PacketKind::kBackward},
                      .boundary = 3,
                      .boundary_kind = 0,
                      .pack = 5,
                      .rows = 0x11223344,
                      .cols = 16,
                      .basis_version = -4};
  for (size_t i = 0; i < header.run.size(); ++i) header.run[i] = static_cast<uint8_t>(0x10 + i);
  MessageBytes payload;
  for (const int value : {1, 2, 3, 4, 5}) payload.push_back(static_cast<std::byte>(value));
  EXPECT_EQ(hex_of(encode_packet(header, payload)),
            "0102030405"
            "54504b5401010005101112131415161718191a1b1c1d1e1f"
            "080706050403020109000000000000000200000003000000"
            "fcffffffffffffff4433221110000000050000000000000000000000"
            "9cf902c5");
}

TEST(Packet, LeavesAPayloadWithRoomWhereItIs) {
  auto payload = test_payload();
  payload.reserve(payload.size() + kPacketHeaderBytes);
  const auto* bytes = payload.data();
  auto message = encode_packet(test_header(), std::move(payload));
  EXPECT_EQ(message.data(), bytes);
  const auto packet = parse_packet(std::move(message), test_rules());
  EXPECT_EQ(packet.value().payload.data(), bytes);
}

TEST(Packet, RunTagIsTheIdItselfOrItsHash) {
  EXPECT_EQ(run_tag("000102030405060708090a0b0c0d0eff"),
            (RunTag{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255}));
  EXPECT_EQ(run_tag("kjv-small"), run_tag("17a0562d3e5f111afb8c29dbbcd3f78e"));  // sha256sum
  // Upper-case digits and any other length are names.
  EXPECT_NE(run_tag("000102030405060708090A0B0C0D0EFF"), run_tag("000102030405060708090a0b0c0d0eff"));
  EXPECT_NE(run_tag("000102030405060708090a0b0c0d0eff0"), run_tag("000102030405060708090a0b0c0d0eff"));
}

TEST(Packet, RefusesEveryFlippedBit) {
  const auto message = test_packet();
  for (size_t at = 0; at < message.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = message;
      flipped[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_TRUE(refused(std::move(flipped), "", test_rules())) << "byte " << at << ", bit " << bit;
    }
  }
}

// Somebody who computes the checksum anew gets no further than the fields that may have any value.
TEST(Packet, RefusesEveryFlippedBitOfAFixedFieldUnderARightChecksum) {
  const auto message = test_packet();
  size_t accepted = 0;
  for (size_t at = 0; at < kPacketHeaderBytes - 4; ++at) {
    const bool is_free = (at >= 24 && at < 44) || (at >= 48 && at < 64);  // epoch, step, microbatch; basis, rows, cols
    for (int bit = 0; bit < 8; ++bit) {
      auto flipped = message;
      flipped[kPayloadBytes + at] ^= static_cast<std::byte>(1 << bit);
      seal_packet(flipped);
      const auto packet = parse_packet(flipped, test_rules());
      // The kinds 0 to 3 differ in a bit.
      EXPECT_TRUE(!packet.ok() || is_free || (at == 5 && bit < 2)) << "byte " << at << ", bit " << bit;
      if (!packet.ok()) continue;
      ++accepted;
      EXPECT_EQ(encode_packet(packet.value().header, packet.value().payload), flipped);
    }
  }
  // All bits of epoch, basis version, rows and cols; of step all but the sign; of microbatch 1 those that make 0 and 3;
  // of the kind the one that makes it backward: the end of a step has no microbatch 1, and an evaluation is two bits
  // away.
  EXPECT_EQ(accepted, 8u * 8 + 8 * 8 + 4 * 8 + 4 * 8 + 63 + 2 + 1);
}

TEST(Packet, RefusesEveryTruncation) {
  const auto message = test_packet();
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    auto head = message;
    head.resize(bytes);
    head.shrink_to_fit();
    EXPECT_TRUE(refused(std::move(head), "", test_rules())) << "the first " << bytes;
    EXPECT_TRUE(
        refused(MessageBytes(message.end() - static_cast<std::ptrdiff_t>(bytes), message.end()), "", test_rules()))
        << "the last " << bytes;
  }
  EXPECT_TRUE(refused(MessageBytes(79), "a packet of 79 bytes; its trailer alone has 80", test_rules()));
}

TEST(Packet, RefusesAPayloadOfAnotherLengthThanTheTrailerTells) {
  for (const int more : {-1, 1}) {
    auto message = test_packet();
    if (more > 0) message.insert(message.begin(), std::byte{0});
    if (more < 0) message.erase(message.begin());
    seal_packet(message);
    EXPECT_TRUE(refused(std::move(message), "tells of 37 payload bytes but which has", test_rules()));
  }
}

TEST(Packet, RefusesMoreThanTheLargestPayload) {
  auto rules = test_rules();
  rules.max_payload_bytes = kPayloadBytes;
  EXPECT_TRUE(parse_packet(test_packet(), rules).ok());
  rules.max_payload_bytes = kPayloadBytes - 1;
  EXPECT_TRUE(refused(test_packet(), "with 37 payload bytes; this boundary's largest has 36", rules));
}

TEST(Packet, NamesADamagedPayload) {
  auto message = test_packet();
  message[0] ^= std::byte{1};
  EXPECT_TRUE(refused(std::move(message), "a packet damaged on its way: its checksum is ", test_rules()));
}

TEST(Packet, NamesAnotherProtocol) {
  auto message = test_packet();
  message[kPayloadBytes + 4] = std::byte{2};
  EXPECT_TRUE(refused(message, "protocol version 2; this build speaks version 1", test_rules()));
  message[kPayloadBytes] = std::byte{'t'};
  EXPECT_TRUE(refused(message, "without 'TPKT'", test_rules()));
}

TEST(Packet, RefusesReservedBytesThatAreSet) {
  for (size_t at = 68; at < 76; ++at) {
    auto message = test_packet();
    message[kPayloadBytes + at] = std::byte{1};
    seal_packet(message);
    EXPECT_TRUE(refused(std::move(message), "reserved bytes are not all 0", test_rules()));
  }
}

TEST(Packet, RefusesWhatBelongsElsewhere) {
  EXPECT_TRUE(refused([](PacketHeader& header) { header.run = run_tag("000102030405060708090a0b0c0d0eff"); },
                      "a packet of run 000102030405060708090a0b0c0d0eff; this is run "));
  EXPECT_TRUE(refused([](PacketHeader& header) { header.boundary = 1; }, "of boundary 1; this is boundary 2"));
  EXPECT_TRUE(refused([](PacketHeader& header) { header.boundary_kind = 1; },
                      "of boundary kind 1; this boundary is of kind 0"));
  EXPECT_TRUE(refused([](PacketHeader& header) { header.pack = 1; }, "in pack 1; this boundary uses pack 5"));
}

TEST(Packet, RefusesTagsThatNoRunHas) {
  EXPECT_TRUE(refused([](PacketHeader& header) { header.tag.kind = static_cast<PacketKind>(4); }, "with kind 4; 0 "));
  EXPECT_TRUE(refused([](PacketHeader& header) { header.tag.step = -1; }, "with step -1; steps count from 0"));
  EXPECT_TRUE(refused([](PacketHeader& header) { header.tag.microbatch = 4; },
                      "with microbatch 4; a step has 4, counted from 0"));
  EXPECT_TRUE(refused(
      [](PacketHeader& header) {
        header.tag.kind = PacketKind::kBackward;
        header.tag.microbatch = 4;
      },
      "with microbatch 4; a step has 4"));
  EXPECT_TRUE(refused([](PacketHeader& header) { header.tag.kind = PacketKind::kEndOfStep; },
                      "with microbatch 1; the end of a step has 1"));
  EXPECT_TRUE(refused(
      [](PacketHeader& header) {
        header.tag.kind = PacketKind::kEvalForward;
        header.tag.microbatch = 6;
      },
      "with microbatch 6; an evaluation has 6"));
  auto header = test_header();
  header.tag.kind = PacketKind::kEvalForward;
  header.tag.microbatch = 5;
  EXPECT_TRUE(parse_packet(encode_packet(header, test_payload()), test_rules()).ok());
}

TEST(PacketDeathTest, AHeaderThatDoesNotFitItsFieldsIsAFault) {
  auto header = test_header();
  header.boundary = -1;
  EXPECT_DEATH((void)encode_packet(header, {}), "at boundary -1 cannot be written down");
}

}  // namespace
}  // namespace thinpipe
