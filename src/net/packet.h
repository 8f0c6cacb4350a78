// What one message between neighbouring stages is, between processes and between the threads of one: the payload, and
// behind it a trailer that says which message of which run it is (docs/wire.md, "Packets"). Behind it, so that neither
// end moves the payload: the sender appends, the receiver cuts off. packet_link.h decides what to do with a packet.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// The size of the trailer.
constexpr size_t kPacketHeaderBytes = 80;
constexpr uint8_t kPacketVersion = 1;

enum class PacketKind : uint8_t { kForward = 0, kBackward = 1, kEndOfStep = 2, kEvalForward = 3 };

// Which message of the run. In the order of the fields, so all of a step lie together.
struct PacketTag {
  uint64_t epoch = 0;
  int64_t step = 0;        // from 0; of an evaluation: the number of committed steps
  int64_t microbatch = 0;  // of the end of a step: 0
  PacketKind kind = PacketKind::kForward;

  auto operator<=>(const PacketTag&) const = default;
};

// "the forward packet of epoch 2, step 7, microbatch 3"
std::string to_string(const PacketTag& tag);

using RunTag = std::array<uint8_t, 16>;
// The bytes that 32 lower-case hex digits stand for; of any other id the first half of its SHA-256.
RunTag run_tag(std::string_view run_id);

struct PacketHeader {
  RunTag run{};
  PacketTag tag;
  int64_t boundary = 0;       // 0 is the cut behind the first stage
  uint8_t boundary_kind = 0;  // boundary/boundary.h numbers them
  uint8_t pack = 0;
  uint32_t rows = 0;  // of the matrix in the payload
  uint32_t cols = 0;
  int64_t basis_version = 0;
  uint32_t payload_bytes = 0;  // encode_packet() fills in these two
  uint32_t checksum = 0;

  bool operator==(const PacketHeader&) const = default;
};

struct Packet {
  PacketHeader header;
  std::vector<std::byte> payload;
};

// What is the same for every packet of a boundary, and the limits of the rest. Both ends know them from the run's
// config.
struct PacketRules {
  RunTag run{};
  int64_t boundary = 0;
  uint8_t boundary_kind = 0;
  uint8_t pack = 0;
  size_t max_payload_bytes = 0;
  int64_t microbatches = 0;       // M: a training packet's microbatch is below it
  int64_t eval_microbatches = 0;  // an evaluation's is below this
  std::string neighbour = {};     // who is at the other end, for the reasons; empty: not known
};

// "" when the tag is one that a run under these rules can have, else what is wrong: "microbatch 4 of a step of 4".
std::string tag_problem(const PacketTag& tag, const PacketRules& rules);

// The payload with its trailer. A payload that has room for kPacketHeaderBytes more in its capacity stays where it is;
// else it is copied once. The header's numbers must fit their fields (docs/wire.md).
std::vector<std::byte> encode_packet(const PacketHeader& header, std::vector<std::byte> payload);

// Writes the checksum of a message of at least 4 bytes into its last 4. encode_packet() has done so.
void seal_packet(std::vector<std::byte>& message);

// The packet in a message from a peer, its payload not moved; or one line that says what is wrong and what would be
// right, and begins with "a packet".
Result<Packet> parse_packet(std::vector<std::byte> message, const PacketRules& rules);

}  // namespace thinpipe
