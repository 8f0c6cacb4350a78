// Links over gRPC between two ends in one process, through a real server on a port of the kernel's choice.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "net/grpc_link.h"
#include "net/link_service.h"

namespace thinpipe {

// Longer than any test takes: a link that hangs shows as such.
inline constexpr Duration kDialTimeout = std::chrono::minutes(2);
inline constexpr size_t kMaxMessageBytes = size_t{8} << 20;

inline Status let_in(const LinkHello&, const LinkCaller&) { return {}; }

inline std::unique_ptr<LinkServer> start_server(LinkGate gate = let_in, size_t max_message_bytes = kMaxMessageBytes) {
  return LinkServer::start({"127.0.0.1:0"}, max_message_bytes, std::move(gate)).take();
}

inline std::string address_of(const LinkServer& server) { return fmt::format("127.0.0.1:{}", server.ports().front()); }

inline LinkHello hello_for(int64_t boundary, uint64_t epoch = 1) { return {"a run", "a peer", boundary, epoch}; }

class GrpcLinks {
 public:
  // The first dials.
  std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make(int64_t capacity_down, int64_t capacity_up) {
    const LinkLimits limits{capacity_down, capacity_up, kMaxMessageBytes};
    auto upper = dial_link(address_of(*server_), hello_for(0), limits, kDialTimeout).take();
    auto lower = server_->service().wait_for(0, 1, "", limits).take();
    return {std::move(upper), std::move(lower)};
  }

  LinkServer& server() { return *server_; }

 private:
  std::unique_ptr<LinkServer> server_ = start_server();
};

}  // namespace thinpipe
