// Sends equal packets one way and measures their rate, to compare lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "net/packet_link.h"

namespace thinpipe {

inline constexpr size_t kTransferBytes = size_t{64} << 10;
inline constexpr PacketTag kTransferAnswer{0, 0, 0, PacketKind::kBackward};

inline PacketRules transfer_rules() { return {.microbatches = 7, .eval_microbatches = int64_t{1} << 40}; }
inline PacketTag transfer_tag(int64_t number) { return {0, 0, number, PacketKind::kEvalForward}; }

// Returns when the other end confirms that it has them all.
inline Status send_transfer(PacketLink& link, int64_t messages) {
  const std::vector<std::byte> payload(kTransferBytes);
  for (int64_t number = 0; number < messages; ++number) TRY(link.send(transfer_tag(number), payload, 0));
  const auto answer = link.receive(kTransferAnswer, 0);
  return answer ? Status{} : Status(answer.error());
}

// Bits per second of payload. The first few packets do not count: they include connecting and filling the line's
// buffers.
inline Result<double> receive_transfer(PacketLink& link, int64_t messages) {
  constexpr int64_t kUncounted = 8;
  std::chrono::steady_clock::time_point start;
  for (int64_t number = 0; number < messages; ++number) {
    if (const auto message = link.receive(transfer_tag(number), 0); !message) return message.error();
    if (number + 1 == kUncounted) start = std::chrono::steady_clock::now();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (auto sent = link.send(kTransferAnswer, {}, 0); !sent.ok()) return sent.error();
  return static_cast<double>((messages - kUncounted) * static_cast<int64_t>(kTransferBytes) * 8) / took.count();
}

}  // namespace thinpipe
