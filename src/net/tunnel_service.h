// The relay: a coordinator's side of links between neighbours that cannot dial each other. Both dial the coordinator,
// which joins their two calls and moves bytes between them; it does not know what they are, and with TLS between the
// neighbours cannot. The ends are tunnel.h.
//
// On a call of Relay/Join: a hello; when the two ends are joined, the relay's `accepted` to both; then pieces of 1 to
// kMaxTunnelBytes bytes; an empty one says that there are no more this way. The call ends with OK when both ways have
// ended so, else with the reason.
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

// Ok lets an end in; an error refuses it, and it gets the message. Called by gRPC's own threads, several at once: it
// must not wait. This is where the caller's certificate is held against the stage it speaks for. The two ends of a
// tunnel say the same run, boundary and epoch; one of them dials.
using TunnelGate = std::function<Status(const wire::Hello&, const Caller&)>;

// All from any thread. It has no threads of its own: gRPC's call back, and never wait here. Of each direction one piece
// at most is held: the next is read when the last has been written, so an end that does not take stops one that sends.
//
// An end ends at once, with a reason, when the other vanishes, sends what it must not or is replaced. What has been
// passed on to it and not been taken yet gets half a second to leave.
class TunnelService final : public wire::Relay::CallbackService {
 public:
  // No more ends wait for their partners at once; what comes then is refused.
  static constexpr size_t kMaxWaiting = 64;
  // No more calls are on their way to say whose they are: one more ends the oldest of them, because anyone may begin
  // a call.
  static constexpr size_t kMaxOpening = 64;

  // partner_timeout: how long an end waits for the other. hello_time: how long it may take to say whose it is.
  explicit TunnelService(TunnelGate gate, Duration partner_timeout = std::chrono::seconds(30),
                         Duration hello_time = std::chrono::seconds(10));
  // The server that runs it must have been shut down.
  ~TunnelService() override;

  // Ends all of epochs before this one, waiting or joined.
  void drop(uint64_t before_epoch);

  // For good: ends all with this reason and refuses what comes. Before the server's own shutdown.
  void shutdown(const std::string& reason);

 private:
  class End;
  struct Shared;

  grpc::ServerBidiReactor<wire::Frame, wire::Frame>* Join(grpc::CallbackServerContext* context) override;

  const std::shared_ptr<Shared> shared_;  // with the ends, whose alarms may ring when all else has gone
};

}  // namespace thinpipe
