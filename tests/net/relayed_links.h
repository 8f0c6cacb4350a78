// Relayed paths within one process: a real coordinator's server with a TunnelService, and both ends of tunnels.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/grpc_links.h"
#include "net/local_socket.h"
#include "net/raw_call.h"
#include "net/tunnel.h"
#include "net/tunnel_service.h"

namespace thinpipe {

// For ends that do come, on a machine of any speed. Tests of a timeout give their own.
constexpr std::chrono::minutes kRelayPatience{4};

inline Status let_through(const wire::Hello&, const Caller&) { return {}; }

class RelayServer {
 public:
  explicit RelayServer(TunnelGate gate = let_through, Duration partner_timeout = kRelayPatience,
                       Duration hello_time = kRelayPatience)
      : service_(std::move(gate), partner_timeout, hello_time) {
    prepare_grpc();
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    TP_CHECK(server_ != nullptr, "the relay does not start");
  }
  ~RelayServer() { kill(); }

  TunnelService& service() { return service_; }
  int port() const { return port_; }

  // Each call makes a new connection.
  std::shared_ptr<grpc::Channel> channel() const { return plain_channel(fmt::format("127.0.0.1:{}", port_)); }

  // Without telling the ends.
  void kill() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

 private:
  TunnelService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

using OpenedTunnel = Result<std::unique_ptr<Tunnel>>;

inline wire::Hello end_hello(bool dials, int64_t boundary = 0, uint64_t epoch = 1) {
  return tunnel_hello("a run", boundary, epoch, dials);
}

// Waits for the other end in a separate thread.
inline std::future<OpenedTunnel> open_later(const RelayServer& relay, const wire::Hello& hello,
                                            const std::string& accepts_at = "", const std::stop_token& stop = {}) {
  return std::async(std::launch::async, [channel = relay.channel(), hello, accepts_at, stop] {
    return Tunnel::open(channel, hello, {.accepts_at = accepts_at, .timeout = kRelayPatience}, stop);
  });
}

struct TunnelEnds {
  std::unique_ptr<Tunnel> dialling;
  std::unique_ptr<Tunnel> accepting;
};

inline TunnelEnds open_ends(const RelayServer& relay, const std::string& accepts_at, int64_t boundary = 0,
                            uint64_t epoch = 1) {
  auto accepting = open_later(relay, end_hello(false, boundary, epoch), accepts_at);
  auto dialling = Tunnel::open(relay.channel(), end_hello(true, boundary, epoch), {.timeout = kRelayPatience});
  return {std::move(dialling).take(), accepting.get().take()};
}

// A tunnel between two plain sockets.
struct SocketTunnel {
  explicit SocketTunnel(const RelayServer& relay, int64_t boundary = 0, uint64_t epoch = 1)
      : ends(open_ends(relay, listener.address(), boundary, epoch)),
        near(LocalSocket::connect(ends.dialling->local_address(), kDialTimeout).take()),
        far(listener.accept().take()) {}

  LocalSocket listener = LocalSocket::listen().take();
  TunnelEnds ends;
  LocalSocket near;  // at the dialling end
  LocalSocket far;
};

// A socket in front of a tunnel's dialling end that records all passing bytes, which the relay sees.
class Wiretap {
 public:
  explicit Wiretap(const Tunnel& dialling)
      : behind_(LocalSocket::connect(dialling.local_address(), kDialTimeout).take()), thread_([this] { run(); }) {}
  ~Wiretap() {
    {
      const std::lock_guard lock(mutex_);
      for (auto* socket : {&listener_, &front_, &behind_}) socket->interrupt();
    }
    thread_.join();
  }

  // Dial this instead of the tunnel.
  std::string address() const { return address_; }
  std::string down() const { return seen(down_); }
  std::string up() const { return seen(up_); }

 private:
  void run() {
    auto accepted = listener_.accept();
    if (!accepted) return;
    {
      const std::lock_guard lock(mutex_);
      front_ = std::move(accepted.value());
    }
    std::thread up([this] { move(behind_, front_, up_); });
    move(front_, behind_, down_);
    up.join();
  }

  void move(LocalSocket& from, LocalSocket& to, std::string& passed) {
    std::vector<std::byte> room(1 << 16);
    for (auto got = from.receive(room); got && got.value() > 0; got = from.receive(room)) {
      {
        const std::lock_guard lock(mutex_);
        passed.append(reinterpret_cast<const char*>(room.data()), got.value());
      }
      if (!to.send(std::span(room).first(got.value()))) break;
    }
    to.end_sending();
  }

  std::string seen(const std::string& passed) const {
    const std::lock_guard lock(mutex_);
    return passed;
  }

  mutable std::mutex mutex_;  // changes of front_, and the bytes
  LocalSocket listener_ = LocalSocket::listen().take();
  const std::string address_ = listener_.address();
  LocalSocket front_, behind_;
  std::string down_, up_;
  std::thread thread_;
};

// For the common link suite.
class RelayedLinks {
 public:
  static constexpr LinkShape kShape{};

  std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make() {
    tunnels_.push_back(open_ends(relay_, address_of(*server_), 0, ++made_));
    auto upper =
        dial_link(tunnels_.back().dialling->local_address(), hello_for(0), kMaxPayloadBytes, kDialTimeout).take();
    auto lower = server_->service().wait_for(0, 1, "").take();
    return {std::move(upper), std::move(lower)};
  }

 private:
  RelayServer relay_;
  std::unique_ptr<LinkServer> server_ = start_server();
  std::vector<TunnelEnds> tunnels_;
  uint64_t made_ = 0;
};

}  // namespace thinpipe
