// The accepting side of links between processes. A gate admits or refuses the streams that neighbours open. Admitted
// streams wait until the worker takes the one for its boundary and epoch. The dialling side is grpc_link.h.
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

// Ok admits a stream; an error refuses it, and the dialler gets its message. Many threads call it at once. It must not
// wait for the dialler.
using LinkGate = std::function<Status(const wire::Hello&, const Caller&)>;

// Reports an admitted stream that wait_for() did not want, with the reason. Many threads call it at once, with none of
// the service's locks held.
using OnRefused = std::function<void(const std::string& reason)>;

// Any thread may call any function. Each stream occupies a gRPC thread for its whole life. After the stream is taken,
// that thread only keeps gRPC from ending the call.
class LinkService final : public wire::Links::Service {
 public:
  // At most this many streams wait to be taken. One more drops the oldest stream of the peer that has most, so that
  // nobody displaces others.
  static constexpr size_t kMaxWaiting = 16;

  // hello_time: how long a stream may take to send its hello.
  explicit LinkService(LinkGate gate, OnRefused on_refused = nullptr, Duration hello_time = std::chrono::seconds(10));

  // Waits for the stream of that boundary and epoch from that peer; "" means the newest from anyone. Returns an error
  // if stop is requested or the service is shut down. At most one stream waits per boundary and peer: a newer one of
  // the same or a later epoch replaces it, one of an earlier epoch is refused. Closes streams of earlier epochs, and
  // streams of other peers for this epoch. Each gets the reason. The gate must verify who a peer is.
  //
  // The server's shutdown waits until the link is finished or destroyed.
  Result<std::unique_ptr<Link>> wait_for(int64_t boundary, uint64_t epoch, const std::string& from_peer,
                                         const std::stop_token& stop = {});

  // Permanent: closes every stream that was not taken with this reason, wakes every wait_for() and refuses new streams.
  void shutdown(const std::string& reason);

 private:
  using Stream = grpc::ServerReaderWriter<wire::Frame, wire::Frame>;
  struct Call;
  class AcceptedLink;

  grpc::Status Exchange(grpc::ServerContext* context, Stream* stream) override;
  // Serves everyone whom the credentials admit.
  grpc::Status Echo(grpc::ServerContext* context, const wire::EchoRequest* request, wire::EchoReply* reply) override;

  grpc::Status open(Call& call, const Caller& caller);
  Status take_place(Call& call, const wire::Hello& hello);
  void serve(Call& call);
  // With the mutex held:
  void drop(Call& call, std::string reason);
  void drop_if_too_many();
  // Returns the call to take; drops calls that are no longer useful.
  Call* waiting_call(int64_t boundary, uint64_t epoch, const std::string& from_peer);

  const LinkGate gate_;
  const OnRefused on_refused_;
  const Duration hello_time_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<std::string> shut_down_;  // the reason
  std::vector<Call*> calls_;              // neither taken nor dropped, in order of arrival
};

// A gRPC server with a LinkService on it.
class LinkServer {
 public:
  // Listens at all of the addresses, or fails. "127.0.0.1:0" lets the kernel choose the port. max_payload_bytes: of any
  // packet. credentials: null means no identity and no encryption.
  static Result<std::unique_ptr<LinkServer>> start(const std::vector<std::string>& listen_addresses,
                                                   size_t max_payload_bytes, LinkGate gate,
                                                   std::shared_ptr<grpc::ServerCredentials> credentials = nullptr,
                                                   OnRefused on_refused = nullptr);
  // Shuts down if shutdown() has not been called.
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // In the order of the listen addresses.
  const std::vector<int>& ports() const { return ports_; }
  LinkService& service() { return service_; }

  // Shuts the service down with the reason, gives links half a second to end, breaks off the rest and stops listening.
  // Call it once.
  void shutdown(const std::string& reason);

 private:
  LinkServer(LinkGate gate, OnRefused on_refused);

  LinkService service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<int> ports_;
};

}  // namespace thinpipe
