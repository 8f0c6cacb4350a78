// The relay: a coordinator's side of links between neighbours that cannot dial each other. Both dial the coordinator,
// which joins their two calls and moves bytes between them; it does not know what they are, and with TLS between the
// neighbours cannot. The ends are tunnel.h.
//
// On a call of Tunnel/Join: buffers of 1 to kMaxTunnelBufferBytes bytes; an empty one says that there are no more this
// way. The answer's initial metadata goes out when the two ends are joined. The call ends with OK when both ways have
// ended so, else with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "net/link_service.h"

namespace grpc {
class Service;
}

namespace thinpipe {

inline constexpr char kTunnelMethod[] = "/thinpipe.Tunnel/Join";
inline constexpr char kDialsKey[] = "thinpipe-dials";    // "1" or "0"; the others are those of stream_link.h
inline constexpr char kJoinedKey[] = "thinpipe-joined";  // in the answer when the ends are joined
inline constexpr size_t kMaxTunnelBufferBytes = size_t{64} << 10;

// What an end says of itself. The two of a tunnel say the same, but for `dials`.
struct TunnelHello {
  std::string run;
  int64_t boundary = 0;  // between stages boundary and boundary + 1
  uint64_t epoch = 0;
  bool dials = false;  // its gRPC dials through the tunnel; the other end's accepts

  bool operator==(const TunnelHello&) const = default;
};

// Ok lets an end in; an error refuses it, and it gets the message. Called by gRPC's own threads, several at once: it
// must not wait. This is where the caller's certificate is held against the stage it speaks for.
using TunnelGate = std::function<Status(const TunnelHello&, const LinkCaller&)>;

// All from any thread. It has no threads of its own: gRPC's call back, and never wait here. Of each direction one
// buffer at most is held: the next is read when the last has been written, so an end that does not take stops one that
// sends.
//
// An end ends at once, with a reason, when the other vanishes, sends what it must not or is replaced. What has been
// passed on to it and not been taken yet gets half a second to leave.
class TunnelService {
 public:
  // No more ends wait at once; what comes then is refused.
  static constexpr size_t kMaxWaiting = 64;

  // partner_timeout: how long an end waits for the other.
  explicit TunnelService(TunnelGate gate, Duration partner_timeout = std::chrono::seconds(30));
  // The server that runs it must have been shut down.
  ~TunnelService();
  TunnelService(const TunnelService&) = delete;
  TunnelService& operator=(const TunnelService&) = delete;

  // For ServerBuilder::RegisterService(), beside whatever else the server does.
  grpc::Service& grpc_service();

  // Ends all of epochs before this one, waiting or joined.
  void drop(uint64_t before_epoch);

  // For good: ends all with this reason and refuses what comes. Before the server's own shutdown.
  void shutdown(const std::string& reason);

 private:
  class Relay;
  std::unique_ptr<Relay> relay_;
};

}  // namespace thinpipe
