// Links over gRPC between two ends in one process, through a real server on a port of the kernel's choice.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/link_shape.h"
#include "net/grpc_link.h"
#include "net/link_service.h"

namespace thinpipe {

// Longer than any test takes, so that a hanging link shows.
inline constexpr Duration kDialTimeout = std::chrono::minutes(2);
inline constexpr size_t kMaxPayloadBytes = size_t{8} << 20;

inline Status let_in(const wire::Hello&, const Caller&) { return {}; }

inline std::unique_ptr<LinkServer> start_server(LinkGate gate = let_in, size_t max_payload_bytes = kMaxPayloadBytes) {
  return LinkServer::start({"127.0.0.1:0"}, max_payload_bytes, std::move(gate)).take();
}

inline std::string address_of(const LinkServer& server) { return fmt::format("127.0.0.1:{}", server.ports().front()); }

inline wire::Hello hello_for(int64_t boundary, uint64_t epoch = 1) {
  return link_hello("a run", "a peer", boundary, epoch);
}

class GrpcLinks {
 public:
  static constexpr LinkShape kShape{};

  // The first dials.
  std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make() {
    auto upper = dial_link(address_of(*server_), hello_for(0), kMaxPayloadBytes, kDialTimeout).take();
    auto lower = server_->service().wait_for(0, 1, "").take();
    return {std::move(upper), std::move(lower)};
  }

  LinkServer& server() { return *server_; }

 private:
  std::unique_ptr<LinkServer> server_ = start_server();
};

}  // namespace thinpipe
