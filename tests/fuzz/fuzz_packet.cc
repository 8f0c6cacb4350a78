// Any bytes as a packet. The first byte chooses: 0 as they are, 1 with a right checksum, 2 also with the rest that
// would be refused early (mark, version, run, length) made right, so that the fuzzer gets at the checks behind. Refused
// with one line, or a packet that keeps the rules and is written down again as the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/result.h"
#include "net/packet.h"

namespace {

using namespace thinpipe;

PacketRules fuzz_rules() {
  return {.run = run_tag("fuzz"),
          .boundary = 2,
          .boundary_kind = 1,
          .pack = 3,
          .max_payload_bytes = 1000,
          .microbatches = 4,
          .eval_microbatches = 6};
}

// The trailer of an honest packet of this size over the message's own, in the fields named above.
void repair(std::vector<std::byte>& message, const PacketRules& rules) {
  const size_t payload_bytes = message.size() - kPacketHeaderBytes;
  const auto honest = encode_packet({.run = rules.run}, std::vector<std::byte>(payload_bytes));
  constexpr struct { size_t at, bytes; } kFields[] = {{0, 5}, {8, 16}, {64, 4}};
  for (const auto& [at, bytes] : kFields) {
    std::copy_n(honest.data() + payload_bytes + at, bytes, message.data() + payload_bytes + at);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const int mode = data[0] % 3;
  const auto rules = fuzz_rules();
  // On the heap and no longer than they are, so that a read past the end is seen.
  std::vector<std::byte> message(size - 1);
  if (!message.empty()) std::memcpy(message.data(), data + 1, message.size());
  if (mode == 2 && message.size() >= kPacketHeaderBytes) repair(message, rules);
  if (mode != 0 && message.size() >= 4) seal_packet(message);

  const auto packet = parse_packet(message, rules);
  if (!packet) {
    const std::string& why = packet.error().message;
    TP_CHECK(why.starts_with("a packet") && why.find('\n') == std::string::npos, "refused with '{}'", why);
    return 0;
  }
  const auto& [header, payload] = packet.value();
  TP_CHECK(payload.size() + kPacketHeaderBytes == message.size() && payload.size() <= rules.max_payload_bytes,
           "{} payload bytes in a message of {}", payload.size(), message.size());
  TP_CHECK(header.run == rules.run && header.boundary == rules.boundary && header.pack == rules.pack &&
               header.boundary_kind == rules.boundary_kind,
           "a packet of boundary {} was accepted", header.boundary);
  TP_CHECK(tag_problem(header.tag, rules).empty(), "accepted with {}", tag_problem(header.tag, rules));
  TP_CHECK(encode_packet(header, payload) == message, "{} is written down in another way", to_string(header.tag));
  return 0;
}
