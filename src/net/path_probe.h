// How good the path to a peer is: its round trip and what it carries each way, measured on a connection of its own
// through the peer's LinkService. By these facts stages are placed and a direct path is told from none.
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
  double down_bits_per_s = 0;  // of payload, framing not counted
};

// Connects, measures, hangs up. Sends and gets about 64 KiB each way at most, in transfers that double, and begins no
// new one after 300 ms each; a transfer's time is less the round trip. A path faster than can be told within 0.1 ms
// looks as fast as that. Blocks, at most for the timeout; any thread. An error says what the connection or the peer
// said: nobody listens, the certificate is not of that name, the peer refuses to be measured.
//
// credentials: null is none at all. expected_name: the name its certificate must prove; "" is the address's own.
// A Tunnel's local_address() does as well, but it is used up then: a tunnel takes one connection.
Result<PathFacts> probe_path(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
                             const std::string& expected_name, Duration timeout);
// The same on a connection that is there already; it must take payloads of kMaxEchoBytes.
Result<PathFacts> probe_path(const std::string& address, const std::shared_ptr<grpc::Channel>& channel,
                             Duration timeout);
// Of an echo, there and back.
inline constexpr size_t kMaxEchoBytes = size_t{64} << 10;

}  // namespace thinpipe
