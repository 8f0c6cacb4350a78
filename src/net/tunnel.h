// One end of a relayed path, in a worker: bytes between a socket on loopback, where this worker's own gRPC is, and a
// call to the coordinator (tunnel_service.h), which passes them on to the neighbour's end. A link is then dialled
// through it as if the neighbour were on loopback; its TLS is between the neighbours.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "net/tunnel_service.h"

namespace grpc {
class Channel;
}

namespace thinpipe {

struct TunnelEndOptions {
  // Of an end that does not dial: "127.0.0.1:<port>" of this worker's LinkServer.
  std::string accepts_at = "";
  // For the other end to come, and the coordinator to answer; longer than the service's own, whose reason is better.
  Duration timeout = std::chrono::seconds(40);
};

// Two threads, one each way, which wait for the socket or the call and for nothing else. Any process of this machine
// may be the one that connects to local_address(): who speaks is for the link's TLS to prove.
class Tunnel {
 public:
  // Returns when both ends have joined: the dialling end listens then, the other has connected to its own server. An
  // error when the coordinator cannot be reached or refuses, the other end does not come, or stop is requested. The
  // channel may be one that serves other calls; one of its own keeps bulk and control apart. That the coordinator's
  // machine has vanished is noticed by the channel's keepalive, if it has one.
  static Result<std::unique_ptr<Tunnel>> open(std::shared_ptr<grpc::Channel> coordinator, const TunnelHello& hello,
                                              const TunnelEndOptions& options = {}, const std::stop_token& stop = {});
  // Ends at once, for the other end too; what is on its way may be lost. So destroy the link first, which waits for its
  // last words.
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  // Of the dialling end: for dial_link() or probe_path(). The first connection is taken; later ones are refused.
  const std::string& local_address() const;

 private:
  class Forwarder;
  explicit Tunnel(std::unique_ptr<Forwarder> forwarder);
  std::unique_ptr<Forwarder> forwarder_;
};

}  // namespace thinpipe
