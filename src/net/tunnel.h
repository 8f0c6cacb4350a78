// One end of a relayed path, in a worker: bytes between a socket on loopback, where this worker's own gRPC is, and a
// call to the coordinator (tunnel_service.h), which passes them on to the neighbour's end. A link is then dialled
// through it as if the neighbour were on loopback; its TLS is between the neighbours.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "net/local_socket.h"
#include "proto/frame.grpc.pb.h"

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

// What an end says of itself. dials: its gRPC dials through the tunnel; the other end's accepts.
wire::Hello tunnel_hello(const std::string& run, int64_t boundary, uint64_t epoch, bool dials);

// Two threads, one each way, which wait for the socket or the call and for nothing else. Any process of this machine
// may be the one that connects to local_address(): who speaks is for the link's TLS to prove.
class Tunnel {
 public:
  // Returns when both ends have joined: the dialling end listens then, the other has connected to its own server. An
  // error when the coordinator cannot be reached or refuses, the other end does not come, or stop is requested. The
  // channel may be one that serves other calls; one of its own keeps bulk and control apart. That the coordinator's
  // machine has vanished is noticed by the channel's keepalive, if it has one.
  static Result<std::unique_ptr<Tunnel>> open(const std::shared_ptr<grpc::Channel>& coordinator,
                                              const wire::Hello& hello, const TunnelEndOptions& options = {},
                                              const std::stop_token& stop = {});
  // Ends at once, for the other end too; what is on its way may be lost. So destroy the link first, which waits for its
  // last words.
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  // Of the dialling end: for dial_link() or probe_path(). The first connection is taken; later ones are refused.
  const std::string& local_address() const { return address_; }

 private:
  explicit Tunnel(const std::shared_ptr<grpc::Channel>& coordinator);

  Status join(const wire::Hello& hello, Duration timeout, const std::stop_token& stop);
  // Starts the threads, once, after join().
  void start(LocalSocket socket, bool connected);
  void give_up();
  // Both threads end soon.
  void end(const std::string& reason);
  bool accept();
  void move_out();
  void move_in();
  // "" when the call ended as it should.
  std::string finish();

  // The members are destroyed from the last to the first, as gRPC needs it.
  std::unique_ptr<wire::Relay::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wire::Frame, wire::Frame>> stream_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;  // connected or ended
  bool connected_ = false;           // to the gRPC beside
  bool call_ended_ = false;
  bool ended_ = false;
  LocalSocket socket_;  // first the listener, if it dials; changes hands within the mutex
  std::thread forward_;
};

}  // namespace thinpipe
