// Many equal messages one way, and how fast they came: for comparing lines.
#pragma once

#include <chrono>
#include <cstdint>

#include "net/link.h"

namespace thinpipe {

inline constexpr int64_t kTransferCapacity = 8;
inline constexpr size_t kTransferMessageBytes = size_t{64} << 10;

// Returns when the other end has said that it has them all.
inline Status send_transfer(Link& link, int64_t messages) {
  for (int64_t number = 0; number < messages; ++number) {
    if (auto sent = link.send(std::vector<std::byte>(kTransferMessageBytes)); !sent.ok()) return sent;
  }
  const auto answer = link.receive();
  return answer ? Status{} : Status(answer.error());
}

// Bits per second of message bytes. The first few messages do not count: how long connecting took, and what a line
// takes in at once before it is full.
inline Result<double> receive_transfer(Link& link, int64_t messages) {
  constexpr int64_t kUncounted = 8;
  std::chrono::steady_clock::time_point start;
  for (int64_t number = 0; number < messages; ++number) {
    if (const auto message = link.receive(); !message) return message.error();
    if (number + 1 == kUncounted) start = std::chrono::steady_clock::now();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (auto sent = link.send({}); !sent.ok()) return sent.error();
  return static_cast<double>((messages - kUncounted) * static_cast<int64_t>(kTransferMessageBytes) * 8) / took.count();
}

}  // namespace thinpipe
