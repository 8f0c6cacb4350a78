#include "net/tunnel.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "net/grpc_link.h"
#include "net/local_socket.h"
#include "net/opening_timeout.h"
#include "net/stream_link.h"

namespace thinpipe {
namespace {

using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
using StreamFactory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;

constexpr auto kConnectTime = std::chrono::seconds(10);

grpc::ByteBuffer buffer_of(std::span<const std::byte> bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

// The members are destroyed from the last to the first, as gRPC needs it.
class Tunnel::Forwarder {
 public:
  Forwarder(std::shared_ptr<grpc::Channel> channel, const TunnelHello& hello) : channel_(std::move(channel)) {
    context_.AddMetadata(kRunKey, hello.run);
    context_.AddMetadata(kBoundaryKey, std::to_string(hello.boundary));
    context_.AddMetadata(kEpochKey, std::to_string(hello.epoch));
    context_.AddMetadata(kDialsKey, hello.dials ? "1" : "0");
  }

  ~Forwarder() {
    if (!forward_.joinable()) return;
    end("this end of the tunnel was closed");
    forward_.join();
  }

  Status join(Duration timeout, const std::stop_token& stop) {
    OpeningTimeout watch([this] { context_.TryCancel(); }, timeout);
    Status joined;
    {
      const std::stop_callback on_stop(stop, [this] { context_.TryCancel(); });
      const grpc::internal::RpcMethod method(kTunnelMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel_);
      stream_.reset(StreamFactory::Create(channel_.get(), method, &context_));
      stream_->WaitForInitialMetadata();
      if (!context_.GetServerInitialMetadata().contains(kJoinedKey)) {
        const auto said = finish();
        joined = Error{said.empty() ? "whoever listens there does not speak thinpipe's protocol" : said};
      }
    }
    const bool expired = watch.expired();
    if (joined.ok() && !expired && !stop.stop_requested()) return {};
    if (joined.ok()) give_up();
    if (stop.stop_requested()) return Error{"no longer waiting for the other end of the tunnel"};
    if (expired) return Error{fmt::format("no answer of the relay within {}", format_duration(timeout))};
    return Error{fmt::format("the relay: {}", joined.error().message)};
  }

  // The next two once, after join().
  void dial_through(LocalSocket listener) {
    address_ = listener.address();
    socket_ = std::move(listener);
    start();
  }

  Status connect_to(const std::string& address) {
    auto connected = LocalSocket::connect(address, kConnectTime);
    if (!connected) {
      give_up();
      return connected.error();
    }
    socket_ = std::move(connected.value());
    connected_ = true;
    start();
    return {};
  }

  const std::string& address() const { return address_; }

 private:
  void start() {
    forward_ = std::thread([this] {
      std::thread outward([this] {
        if (connected_ || accept()) move_out();
      });
      move_in();
      outward.join();
      if (const auto reason = finish(); !reason.empty()) log_debug("a tunnel ended: {}", reason);
      const std::lock_guard lock(mutex_);
      ended_ = true;
    });
  }

  // Both threads end soon.
  void end(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (ended_ || call_ended_) return;
    ended_ = true;
    log_debug("a tunnel ends: {}", reason);
    socket_.interrupt();
    context_.TryCancel();
    changed_.notify_all();
  }

  // Puts the connection in the listener's place, unless all is over.
  bool accept() {
    auto accepted = socket_.accept();
    {
      const std::lock_guard lock(mutex_);
      if (ended_ || call_ended_) return false;
      if (accepted) {
        socket_ = std::move(accepted.value());
        connected_ = true;
        changed_.notify_all();
        return true;
      }
    }
    end(accepted.error().message);
    return false;
  }

  void move_out() {
    std::vector<std::byte> room(kMaxTunnelBufferBytes);
    for (;;) {
      const auto got = socket_.receive(room);
      if (!got) return end(fmt::format("this side of the tunnel broke off: {}", got.error().message));
      // A call that has ended is for the other thread to notice, which learns why.
      if (!stream_->Write(buffer_of({room.data(), got.value()})) || got.value() == 0) return;
    }
  }

  // Until the call ends.
  void move_in() {
    grpc::ByteBuffer buffer;
    while (stream_->Read(&buffer)) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return connected_ || ended_; });
        if (ended_) return;
      }
      const auto moved = write_to_socket(buffer);
      if (!moved) return end(fmt::format("this side of the tunnel broke off: {}", moved.error().message));
      buffer.Clear();
    }
    const std::lock_guard lock(mutex_);
    call_ended_ = true;
    socket_.interrupt();  // the other thread may wait there
  }

  Status write_to_socket(const grpc::ByteBuffer& buffer) {
    if (buffer.Length() == 0) {
      socket_.end_sending();
      return {};
    }
    std::vector<grpc::Slice> slices;
    if (!buffer.Dump(&slices).ok()) return Error{"a buffer of the relay's cannot be read"};
    for (const auto& slice : slices) {
      const auto* begin = reinterpret_cast<const std::byte*>(slice.begin());
      TRY(socket_.send({begin, slice.size()}));
    }
    return {};
  }

  void give_up() {
    context_.TryCancel();
    (void)finish();
  }

  // "" when the call ended as it should.
  std::string finish() {
    const auto status = stream_->Finish();
    if (status.ok()) return "";
    return status.error_message().empty() ? "the call ended without a reason" : one_line(status.error_message());
  }

  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;  // connected or ended
  bool connected_ = false;           // to the gRPC beside
  bool call_ended_ = false;
  bool ended_ = false;
  LocalSocket socket_;  // first the listener, if it dials; changes hands within the mutex
  std::thread forward_;
};

Tunnel::Tunnel(std::unique_ptr<Forwarder> forwarder) : forwarder_(std::move(forwarder)) {}
Tunnel::~Tunnel() = default;

Result<std::unique_ptr<Tunnel>> Tunnel::open(std::shared_ptr<grpc::Channel> coordinator, const TunnelHello& hello,
                                             const TunnelEndOptions& options, const std::stop_token& stop) {
  prepare_grpc();
  TP_CHECK(hello.dials == options.accepts_at.empty(), "a tunnel's end that {} and accepts at '{}'",
           hello.dials ? "dials" : "does not dial", options.accepts_at);
  auto forwarder = std::make_unique<Forwarder>(std::move(coordinator), hello);
  LocalSocket listener;
  if (hello.dials) listener = TRY(LocalSocket::listen());
  TRY(forwarder->join(options.timeout, stop));
  if (hello.dials) {
    forwarder->dial_through(std::move(listener));
  } else {
    TRY(forwarder->connect_to(options.accepts_at));
  }
  return std::unique_ptr<Tunnel>(new Tunnel(std::move(forwarder)));
}

const std::string& Tunnel::local_address() const { return forwarder_->address(); }

}  // namespace thinpipe
