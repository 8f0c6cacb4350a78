// The accepting side of links between processes: streams that neighbours open are let in or refused by a gate, and wait
// until the worker takes the one of its boundary and epoch. The dialling side is grpc_link.h.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/link.h"
#include "net/tls.h"
#include "proto/frame.grpc.pb.h"

namespace grpc {
class Server;
class ServerCredentials;
}  // namespace grpc

namespace thinpipe {

// Ok lets a stream in; an error refuses it, and the dialler gets its message. Called by many threads at once, and must
// not wait for the dialler.
using LinkGate = std::function<Status(const wire::Hello&, const Caller&)>;

// A stream that was let in was not the one that wait_for() was told to take, and why. Called by many threads at once,
// with none of the service's locks held.
using OnRefused = std::function<void(const std::string& reason)>;

// All from any thread. A stream keeps a thread of gRPC's for its life: until it is taken, for its owner here; after
// that, only to keep gRPC from ending the call.
class LinkService final : public wire::Links::Service {
 public:
  // No more streams are on their way to be taken. One more drops the oldest of the peer that has most, so that nobody
  // displaces others.
  static constexpr size_t kMaxWaiting = 16;

  // hello_time: how long a stream may take to say whose it is.
  explicit LinkService(LinkGate gate, OnRefused on_refused = nullptr, Duration hello_time = std::chrono::seconds(10));

  // Waits for the stream of that boundary and epoch from that peer; "" is anyone's, the last that came. An error when
  // stop is requested or the service is shut down. At most one stream waits per boundary and peer: a newer one of the
  // same epoch or a later one takes its place, one of an earlier epoch is refused. Those of epochs before this one, and
  // those of other peers for this one, are closed. All are told why. The gate must see to it that a peer is who it
  // says.
  //
  // The server's shutdown waits for the link to be finished or destroyed.
  Result<std::unique_ptr<Link>> wait_for(int64_t boundary, uint64_t epoch, const std::string& from_peer,
                                         const std::stop_token& stop = {});

  // For good: closes every stream that was not taken with this reason, wakes every wait_for() and refuses what comes.
  void shutdown(const std::string& reason);

 private:
  using Stream = grpc::ServerReaderWriter<wire::Frame, wire::Frame>;
  struct Call;
  class AcceptedLink;

  grpc::Status Exchange(grpc::ServerContext* context, Stream* stream) override;
  // For whoever the credentials let in.
  grpc::Status Echo(grpc::ServerContext* context, const wire::EchoRequest* request, wire::EchoReply* reply) override;

  grpc::Status open(Call& call, const Caller& caller);
  Status take_place(Call& call, const wire::Hello& hello);
  void serve(Call& call);
  // With the mutex held:
  void drop(Call& call, std::string reason);
  void drop_if_too_many();
  // The one to take; drops those that are of no use any more.
  Call* waiting_call(int64_t boundary, uint64_t epoch, const std::string& from_peer);

  const LinkGate gate_;
  const OnRefused on_refused_;
  const Duration hello_time_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<std::string> shut_down_;  // the reason
  std::vector<Call*> calls_;              // neither taken nor dropped, in the order in which they came
};

// A gRPC server with a LinkService on it.
class LinkServer {
 public:
  // Listens at all of the addresses, or fails. "127.0.0.1:0" lets the kernel choose the port. max_payload_bytes: of any
  // packet. credentials: null is none at all, neither identity nor encryption.
  static Result<std::unique_ptr<LinkServer>> start(const std::vector<std::string>& listen_addresses,
                                                   size_t max_payload_bytes, LinkGate gate,
                                                   std::shared_ptr<grpc::ServerCredentials> credentials = nullptr,
                                                   OnRefused on_refused = nullptr);
  // Shuts down, unless that has been done.
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // In the order of the addresses.
  const std::vector<int>& ports() const { return ports_; }
  LinkService& service() { return service_; }

  // Shuts the service down with the reason, gives links half a second to end, breaks off the rest and stops listening.
  // Once.
  void shutdown(const std::string& reason);

 private:
  LinkServer(LinkGate gate, OnRefused on_refused);

  LinkService service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<int> ports_;
};

}  // namespace thinpipe
