// A packet: one message between neighbouring stages, in two processes or in one. It is a wire::Packet in a wire::Frame
// (docs/wire.md, "Packets"). Defines its tag, the checks on a packet from a peer, and its size limits. packet_link.h
// decides what to do with a packet.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace thinpipe {

namespace wire {
class Frame;
}

// A frame is at most this much larger than its payload. Queues, limits and plans use this bound; a shaped link uses the
// frame's exact size.
inline constexpr size_t kFrameOverheadBytes = 64;

// The numbers are those of wire::Packet::Kind.
enum class PacketKind : uint8_t { kForward = 0, kBackward = 1, kEndOfStep = 2, kEvalForward = 3 };

// Names a message of the run. Tags sort by their fields in order, so all packets of a step are adjacent.
struct PacketTag {
  uint64_t epoch = 0;
  int64_t step = 0;        // from 0; in an evaluation: the number of committed steps
  int64_t microbatch = 0;  // 0 for the end of a step
  PacketKind kind = PacketKind::kForward;

  auto operator<=>(const PacketTag&) const = default;
};

// "the forward packet of epoch 2, step 7, microbatch 3"
std::string to_string(const PacketTag& tag);

// The limits of a boundary's packets. Both ends know them from the run's config.
struct PacketRules {
  int64_t boundary = 0;           // 0 is the cut behind the first stage
  int64_t microbatches = 0;       // M: a training packet's microbatch is below it
  int64_t eval_microbatches = 0;  // an evaluation packet's is below this
  // The largest payload by kind, as PacketKind numbers them; a kind that never crosses has 0.
  std::array<size_t, 4> most_bytes = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};
  std::string neighbour = {};  // who is at the other end, for messages; empty: unknown
};

// Returns "" if a run under these rules can have the tag, else what is wrong: "microbatch 4; a step has 4".
std::string tag_problem(const PacketTag& tag, const PacketRules& rules);

wire::Frame packet_frame(const PacketTag& tag, std::span<const std::byte> payload, int64_t basis_version);

// Returns the tag of the packet in a frame from a peer. The error is one line that begins with "a packet" or "a frame"
// and says what is wrong and what would be right.
Result<PacketTag> packet_tag(const wire::Frame& frame, const PacketRules& rules);

// Tells the other end why this end closes the link; cuts the reason to one line.
wire::Frame last_word_frame(std::string_view reason);

}  // namespace thinpipe
