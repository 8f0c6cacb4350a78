// The accepting side of links between processes: streams that neighbours open are let in or refused by a gate, and wait
// until the worker takes the one of its boundary and epoch. The dialling side is grpc_link.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "net/grpc_link.h"
#include "net/link.h"
#include "net/tls.h"

namespace grpc {
class Server;
class ServerCredentials;
class Service;
}  // namespace grpc

namespace thinpipe {

using LinkCaller = Caller;

// Ok lets a stream in; an error refuses it, and the dialler gets its message. Called by many threads at once, and must
// not wait for the dialler.
using LinkGate = std::function<Status(const LinkHello&, const LinkCaller&)>;

// A stream that was let in was not the one that wait_for() was told to take, and why. Called by many threads at once,
// with none of the service's locks held.
using OnRefused = std::function<void(const std::string& reason)>;

// All from any thread.
class LinkService {
 public:
  // No more streams wait at once. One more drops the oldest of the peer that has most, so that nobody displaces others.
  static constexpr size_t kMaxWaiting = 16;

  explicit LinkService(LinkGate gate, OnRefused on_refused = nullptr);
  // The server that runs it must have been shut down. Links taken from it may live on, closed.
  ~LinkService();
  LinkService(const LinkService&) = delete;
  LinkService& operator=(const LinkService&) = delete;

  // Waits for the stream of that boundary and epoch from that peer; "" is anyone's, the last that came. An error when
  // stop is requested or the service is shut down. At most one stream waits per boundary and peer: a newer one of the
  // same epoch or a later one takes its place, one of an earlier epoch is refused. Those of epochs before this one, and
  // those of other peers for this one, are closed. All are told why. That a peer is who it says is up to the gate.
  Result<std::unique_ptr<Link>> wait_for(int64_t boundary, uint64_t epoch, const std::string& from_peer,
                                         const LinkLimits& limits, const std::stop_token& stop = {});

  // For good: closes every stream, taken or not, with this reason; wakes every wait_for() and refuses what comes.
  void shutdown(const std::string& reason);

  // For ServerBuilder::RegisterService().
  grpc::Service& grpc_service();

 private:
  class Exchange;
  std::unique_ptr<Exchange> exchange_;
};

// A gRPC server with a LinkService on it.
class LinkServer {
 public:
  // Listens at all of the addresses, or fails. "127.0.0.1:0" lets the kernel choose the port. max_message_bytes: of any
  // link; a link's own limit may be lower. credentials: null is none at all, neither identity nor encryption.
  static Result<std::unique_ptr<LinkServer>> start(const std::vector<std::string>& listen_addresses,
                                                   size_t max_message_bytes, LinkGate gate,
                                                   std::shared_ptr<grpc::ServerCredentials> credentials = nullptr,
                                                   OnRefused on_refused = nullptr);
  // Shuts down, unless that has been done.
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // In the order of the addresses.
  const std::vector<int>& ports() const { return ports_; }
  LinkService& service() { return service_; }

  // Closes every stream with the reason, gives what is queued half a second to leave and stops listening. Once.
  void shutdown(const std::string& reason);

 private:
  LinkServer(LinkGate gate, OnRefused on_refused);

  LinkService service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<int> ports_;
};

}  // namespace thinpipe
