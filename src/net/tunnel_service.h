// The relay: the coordinator's side of links between neighbours that cannot dial each other. Both dial the coordinator,
// which joins their two calls and moves bytes between them. It does not interpret the bytes; with TLS between the
// neighbours it cannot. tunnel.h has the ends.
//
// A call of Relay/Join carries a hello; the relay's `accepted` to both ends when they are joined; then pieces of 1 to
// kMaxTunnelBytes bytes. An empty piece ends its direction. The call ends with OK when both directions have ended this
// way, else with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "net/tls.h"
#include "proto/frame.grpc.pb.h"

namespace thinpipe {

inline constexpr size_t kMaxTunnelBytes = size_t{64} << 10;

// Ok admits an end; an error refuses it, and the end gets the message. Several gRPC threads call it at once; it must
// not wait. It compares the caller's certificate with the stage that the caller speaks for. The two ends of a tunnel
// name the same run, boundary and epoch; one of them dials.
using TunnelGate = std::function<Status(const wire::Hello&, const Caller&)>;

// Any thread may call any function. Starts no threads: gRPC's threads call back and never wait here. Holds one piece
// per direction and reads the next when it is written, so a slow reader stops the sender.
//
// An end ends at once, with a reason, when the other vanishes, breaks the protocol or is replaced. A piece that it has
// not read yet gets half a second to leave.
class TunnelService final : public wire::Relay::CallbackService {
 public:
  // At most this many ends wait for their partners; further ones are refused.
  static constexpr size_t kMaxWaiting = 64;
  // At most this many calls have not sent their hello. One more ends the oldest of them, because anyone may begin a
  // call.
  static constexpr size_t kMaxOpening = 64;

  // partner_timeout: how long an end waits for the other. hello_time: how long it may take to send its hello.
  explicit TunnelService(TunnelGate gate, Duration partner_timeout = std::chrono::seconds(30),
                         Duration hello_time = std::chrono::seconds(10));
  // The server that runs it must have been shut down.
  ~TunnelService() override;

  // Ends all tunnels of earlier epochs, waiting or joined.
  void drop(uint64_t before_epoch);

  // Permanent: ends all tunnels with this reason and refuses new ones. Call it before the server's shutdown.
  void shutdown(const std::string& reason);

 private:
  class End;
  struct Shared;

  grpc::ServerBidiReactor<wire::Frame, wire::Frame>* Join(grpc::CallbackServerContext* context) override;

  const std::shared_ptr<Shared> shared_;  // with the ends, whose alarms may ring after this is destroyed
};

}  // namespace thinpipe
