// Measures the path to a peer: its round trip and its rate each way, through the peer's LinkService. These facts decide
// where stages are placed and whether a direct path exists.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace grpc {
class Channel;
class ChannelCredentials;
}  // namespace grpc

namespace thinpipe {

struct PathFacts {
  double round_trip_s = 0;     // the smallest of a few
  double up_bits_per_s = 0;    // towards the address
  double down_bits_per_s = 0;  // from it; both count payload only, not framing
};

// Connects, measures, hangs up. Transfers at most about 64 KiB each way, in transfers that double, and begins no new
// one after 300 ms each way. Subtracts the round trip from a transfer's time, and counts less than 0.1 ms as 0.1 ms.
// Blocks for at most the timeout; any thread may call it. The error is the connection's or the peer's reason: nobody
// listens, the certificate has another name, the peer refuses to be measured.
//
// credentials: null means none. expected_name: the name that its certificate must prove; "" means the address's host. A
// Tunnel's local_address() works too, but this uses the tunnel up: it accepts one connection.
Result<PathFacts> probe_path(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
                             const std::string& expected_name, Duration timeout);
// The same on an existing connection, which must accept payloads of kMaxEchoBytes.
Result<PathFacts> probe_path(const std::string& address, const std::shared_ptr<grpc::Channel>& channel,
                             Duration timeout);
// The largest payload of an echo, each way.
inline constexpr size_t kMaxEchoBytes = size_t{64} << 10;

}  // namespace thinpipe
