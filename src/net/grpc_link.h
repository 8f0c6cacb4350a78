// The dialling side of a link between two processes: one bidirectional gRPC stream of frames on a connection of its
// own. The accepting side is link_service.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "net/link.h"

namespace grpc {
class ChannelCredentials;
}

namespace thinpipe {

struct PathFacts;

// What a dialler says of itself. boundary: between stages boundary and boundary + 1.
wire::Hello link_hello(const std::string& run, const std::string& from_peer, int64_t boundary, uint64_t epoch);

// Both ends ask each other this often whether they are still there, and wait as long for the answer.
inline constexpr int kKeepaliveMs = 10'000;

// The largest frame that an end takes, for gRPC's own limit.
int max_frame_bytes(size_t max_payload_bytes);
// What gRPC may hold of what has arrived: all links of a server together, or the one of a dialler. gRPC 1.51 compares a
// frame with max_frame_bytes() only when it has all of it; this ends a stream with a huge one before.
size_t max_held_bytes(size_t max_payload_bytes);

// Sets gRPC up for this process, once. dial_link() and LinkServer::start() call it; other users of gRPC call it before
// they start.
// - What it would print on standard error goes to log_debug(): every failure comes back to the caller as well.
// - It stays until the process ends. Otherwise gRPC would shut down with its last user, and may then wait 10 s for a
//   poller.
void prepare_grpc();

// Connects and returns when the other side has accepted the stream. An error when nobody listens there, when there is
// no answer within the timeout, or when it is refused: then it holds the reason the other side gave.
//
// A process that vanishes without a word (its machine, its network) is noticed within about 20 s; one that ends, at
// once: "connection to <address> lost: ...". So is one that sends a larger payload than max_payload_bytes, or what is
// not a frame.
//
// credentials: null is none at all, neither identity nor encryption. expected_name: the name that the other side's
// certificate must prove; "" is the address's own. measured: not null, the path is measured first (path_probe.h), on
// the same connection, and the timeout is for each of the two.
Result<std::unique_ptr<Link>> dial_link(const std::string& address, const wire::Hello& hello, size_t max_payload_bytes,
                                        Duration timeout,
                                        std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr,
                                        const std::string& expected_name = "", PathFacts* measured = nullptr);

}  // namespace thinpipe
