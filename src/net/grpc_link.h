// The dialling side of a link between two processes: one bidirectional gRPC stream of raw bytes on a connection of its
// own. The accepting side is link_service.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "net/link.h"

namespace grpc {
class ChannelCredentials;
}

namespace thinpipe {

struct PathFacts;

// What a dialling peer says of itself, and what the accepting side decides by.
struct LinkHello {
  std::string run;
  std::string from_peer;
  int64_t boundary = 0;  // between stages boundary and boundary + 1
  uint64_t epoch = 0;

  bool operator==(const LinkHello&) const = default;
};

// Both ends name the same ones. Down is the way the dialling end sends, as the first of make_memory_link() does.
struct LinkLimits {
  int64_t capacity_down = 0;  // messages
  int64_t capacity_up = 0;
  size_t max_message_bytes = 0;  // sending more is a fault; receiving more closes the link
};

// Sets gRPC up for this process, once. dial_link() and LinkServer::start() see to it; other users of gRPC call it
// before they start.
// - What it would print on standard error goes to log_debug(): every failure comes back to the caller as well.
// - It stays until the process ends. Otherwise gRPC would shut down with its last user, and may then wait 10 s for a
//   poller.
void prepare_grpc();

// Connects and returns when the other side has accepted the stream. An error when nobody listens there, when there is
// no answer within the timeout, or when it is refused: then it holds the reason the other side gave.
//
// A process that vanishes without a word (its machine, its network) is noticed within about 20 s; one that ends, at
// once: "connection to <address> lost: ...". A link that is destroyed gives what is queued half a second to leave.
//
// credentials: null is none at all, neither identity nor encryption. expected_name: the name that the other side's
// certificate must prove; "" is the address's own. measured: not null, the path is measured first (path_probe.h), on
// the same connection, and the timeout is for each of the two.
Result<std::unique_ptr<Link>> dial_link(const std::string& address, const LinkHello& hello, const LinkLimits& limits,
                                        Duration timeout,
                                        std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr,
                                        const std::string& expected_name = "", PathFacts* measured = nullptr);

}  // namespace thinpipe
