// One end of a relayed path, in a worker. Moves bytes between a loopback socket, which this worker's gRPC uses, and a
// call to the coordinator (tunnel_service.h), which passes them on to the neighbour's end. A worker dials a link
// through it as if the neighbour were on loopback; the link's TLS is between the neighbours.
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
  // For the end that does not dial: "127.0.0.1:<port>" of this worker's LinkServer.
  std::string accepts_at = "";
  // For the coordinator's answer and the other end. Longer than the service's timeout, which gives a better reason.
  Duration timeout = std::chrono::seconds(40);
};

// An end's first message. dials: this end's gRPC dials through the tunnel; the other end's accepts.
wire::Hello tunnel_hello(const std::string& run, int64_t boundary, uint64_t epoch, bool dials);

// Runs two threads, one each way, which wait only for the socket or the call. Any process of this machine can connect
// to local_address(); the link's TLS proves who it is.
class Tunnel {
 public:
  // Returns when both ends have joined. By then the dialling end listens and the other has connected to its LinkServer.
  // Returns an error if the coordinator cannot be reached or refuses, the other end does not come, or stop is
  // requested. The channel may serve other calls; a separate one keeps bulk and control apart. Only the channel's
  // keepalive, if it has one, notices that the coordinator's machine has vanished.
  static Result<std::unique_ptr<Tunnel>> open(const std::shared_ptr<grpc::Channel>& coordinator,
                                              const wire::Hello& hello, const TunnelEndOptions& options = {},
                                              const std::stop_token& stop = {});
  // Ends at once, for the other end too. Bytes on their way may be lost, so destroy the link first: it waits for its
  // last words.
  ~Tunnel();
  Tunnel(const Tunnel&) = delete;
  Tunnel& operator=(const Tunnel&) = delete;

  // The dialling end's address for dial_link() or probe_path(). Accepts the first connection and refuses later ones.
  const std::string& local_address() const { return address_; }

 private:
  explicit Tunnel(const std::shared_ptr<grpc::Channel>& coordinator);

  Status join(const wire::Hello& hello, Duration timeout, const std::stop_token& stop);
  // Starts the threads, once, after join().
  void start(LocalSocket socket, bool connected);
  void give_up();
  // Makes both threads end soon.
  void end(const std::string& reason);
  bool accept();
  void move_out();
  void move_in();
  // Returns "" if the call ended normally.
  std::string finish();

  // The order of the members matters: gRPC needs them destroyed from the last to the first.
  std::unique_ptr<wire::Relay::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wire::Frame, wire::Frame>> stream_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;  // connected or ended
  bool connected_ = false;           // to this worker's gRPC
  bool call_ended_ = false;
  bool ended_ = false;
  LocalSocket socket_;  // first the listener, if it dials; replaced under the mutex
  std::thread forward_;
};

}  // namespace thinpipe
