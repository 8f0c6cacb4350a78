// Any bytes as a frame from a neighbour. Not a frame; or refused with one line; or a packet that keeps the rules, which
// is written down again as the same packet.
#include <cstdint>

#include "base/result.h"
#include "net/packet.h"
#include "proto/frame.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  const PacketRules rules{.boundary = 2, .microbatches = 4, .eval_microbatches = 6};
  wire::Frame frame;
  if (!frame.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto tag = packet_tag(frame, rules);
  if (!tag) {
    const std::string& why = tag.error().message;
    TP_CHECK((why.starts_with("a packet") || why.starts_with("a frame")) && why.find('\n') == std::string::npos,
             "refused with '{}'", why);
    return 0;
  }
  TP_CHECK(tag_problem(tag.value(), rules).empty(), "accepted with {}", tag_problem(tag.value(), rules));
  const auto& packet = frame.packet();
  const auto again = packet_frame(tag.value(), std::as_bytes(std::span(packet.payload())), packet.basis_version());
  TP_CHECK(again.ByteSizeLong() <= packet.payload().size() + kFrameOverheadBytes, "{} bytes", again.ByteSizeLong());
  const auto tag_again = packet_tag(again, rules);
  TP_CHECK(tag_again && tag_again.value() == tag.value() && again.packet().payload() == packet.payload(),
           "{} is written down in another way", to_string(tag.value()));
  return 0;
}
