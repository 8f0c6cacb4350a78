// The dialling side of a link between two processes: one bidirectional gRPC stream of frames on a separate connection.
// The accepting side is link_service.h.
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

// The dialler's first message. boundary: the one between stages boundary and boundary + 1.
wire::Hello link_hello(const std::string& run, const std::string& from_peer, int64_t boundary, uint64_t epoch);

// How often each end pings the other, and how long it waits for the answer.
inline constexpr int kKeepaliveMs = 10'000;

// The largest frame that an end accepts, for gRPC's message limit.
int max_frame_bytes(size_t max_payload_bytes);
// How many received bytes gRPC may hold, for all links of a server together or for a dialler's one link. gRPC 1.51
// checks max_frame_bytes() only when it has the whole frame; this limit ends a stream with a huge frame earlier.
size_t max_held_bytes(size_t max_payload_bytes);

// Sets up gRPC for this process, once. dial_link() and LinkServer::start() call it. Other users of gRPC must call it
// before they start.
// - gRPC's messages for standard error go to log_debug(): every failure comes back to the caller as well.
// - gRPC stays until the process ends. Otherwise it would shut down with its last user, and might wait 10 s for a
//   poller.
void prepare_grpc();

// Connects and returns when the other side has accepted the stream. Returns an error if nobody listens there, if there
// is no answer within the timeout, or, with the reason that the other side gave, if it refuses.
//
// The link fails with "connection to <address> lost: ..." within about 20 s if the other machine or its network
// vanishes. It fails at once if the other process ends, sends a larger payload than max_payload_bytes, or sends
// something that is not a frame.
//
// credentials: null means no identity and no encryption. expected_name: the name that the other side's certificate must
// prove; "" means the address's host. measured: if not null, measures the path first (path_probe.h), on the same
// connection; the timeout then applies to each of the two.
Result<std::unique_ptr<Link>> dial_link(const std::string& address, const wire::Hello& hello, size_t max_payload_bytes,
                                        Duration timeout,
                                        std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr,
                                        const std::string& expected_name = "", PathFacts* measured = nullptr);

}  // namespace thinpipe
