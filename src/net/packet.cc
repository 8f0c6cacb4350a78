#include "net/packet.h"

#include <array>

#include "base/line.h"
#include "proto/frame.pb.h"

namespace thinpipe {
namespace {

constexpr std::array<std::string_view, 4> kKindNames{"forward", "backward", "end-of-step", "evaluation"};

}  // namespace

std::string to_string(const PacketTag& tag) {
  const auto kind = static_cast<size_t>(tag.kind);
  return fmt::format("the {} packet of epoch {}, step {}, microbatch {}",
                     kind < kKindNames.size() ? kKindNames[kind] : "unknown", tag.epoch, tag.step, tag.microbatch);
}

std::string tag_problem(const PacketTag& tag, const PacketRules& rules) {
  if (tag.kind > PacketKind::kEvalForward) {
    return fmt::format("kind {}; 0 (forward), 1 (backward), 2 (end of step) and 3 (evaluation) exist",
                       static_cast<unsigned>(tag.kind));
  }
  if (tag.step < 0) return fmt::format("step {}; steps count from 0", tag.step);
  const bool training = tag.kind == PacketKind::kForward || tag.kind == PacketKind::kBackward;
  const int64_t count = training                             ? rules.microbatches
                        : tag.kind == PacketKind::kEndOfStep ? 1
                                                             : rules.eval_microbatches;
  if (tag.microbatch < 0 || tag.microbatch >= count) {
    return fmt::format("microbatch {}; {} has {}, counted from 0", tag.microbatch,
                       training                             ? "a step"
                       : tag.kind == PacketKind::kEndOfStep ? "the end of a step"
                                                            : "an evaluation",
                       count);
  }
  return "";
}

wire::Frame packet_frame(const PacketTag& tag, std::span<const std::byte> payload, int64_t basis_version) {
  wire::Frame frame;
  auto& packet = *frame.mutable_packet();
  packet.set_epoch(tag.epoch);
  packet.set_step(tag.step);
  packet.set_microbatch(tag.microbatch);
  packet.set_kind(static_cast<wire::Packet::Kind>(tag.kind));
  packet.set_basis_version(basis_version);
  packet.set_payload(payload.data(), payload.size());
  return frame;
}

Result<PacketTag> packet_tag(const wire::Frame& frame, const PacketRules& rules) {
  if (!frame.has_packet()) {
    return Error{fmt::format("a frame of kind {}, where {} (packet) or {} (last word) may come",
                             static_cast<int>(frame.what_case()), static_cast<int>(wire::Frame::kPacket),
                             static_cast<int>(wire::Frame::kLastWord))};
  }
  const auto& packet = frame.packet();
  constexpr int kMostKinds = 255;  // a PacketKind holds no more
  const int kind = packet.kind() < 0 || packet.kind() > kMostKinds ? kMostKinds : static_cast<int>(packet.kind());
  const PacketTag tag{packet.epoch(), packet.step(), packet.microbatch(), static_cast<PacketKind>(kind)};
  if (const auto problem = tag_problem(tag, rules); !problem.empty()) return Error{"a packet with " + problem};
  if (const size_t most = rules.most_bytes[static_cast<size_t>(kind)]; packet.payload().size() > most) {
    return Error{fmt::format("a packet of kind {} with {} bytes, where at most {} may come",
                             kKindNames[static_cast<size_t>(kind)], packet.payload().size(), most)};
  }
  return tag;
}

wire::Frame last_word_frame(std::string_view reason) {
  wire::Frame frame;
  frame.set_last_word(one_line(reason));
  return frame;
}

}  // namespace thinpipe
