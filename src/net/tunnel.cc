#include "net/tunnel.h"

#include <grpcpp/channel.h>

#include <chrono>
#include <span>
#include <utility>

#include "base/line.h"
#include "base/log.h"
#include "base/units.h"
#include "net/call_timeout.h"
#include "net/grpc_link.h"
#include "net/tunnel_service.h"

namespace thinpipe {
namespace {

constexpr auto kConnectTime = std::chrono::seconds(10);

}  // namespace

wire::Hello tunnel_hello(const std::string& run, int64_t boundary, uint64_t epoch, bool dials) {
  wire::Hello hello;
  hello.set_run(run);
  hello.set_boundary(boundary);
  hello.set_epoch(epoch);
  hello.set_dials(dials);
  return hello;
}

Result<std::unique_ptr<Tunnel>> Tunnel::open(const std::shared_ptr<grpc::Channel>& coordinator,
                                             const wire::Hello& hello, const TunnelEndOptions& options,
                                             const std::stop_token& stop) {
  prepare_grpc();
  TP_CHECK(hello.dials() == options.accepts_at.empty(), "a tunnel's end that {} and accepts at '{}'",
           hello.dials() ? "dials" : "does not dial", options.accepts_at);
  std::unique_ptr<Tunnel> self(new Tunnel(coordinator));
  LocalSocket listener;
  if (hello.dials()) listener = TRY(LocalSocket::listen());
  TRY(self->join(hello, options.timeout, stop));
  if (hello.dials()) {
    self->address_ = listener.address();
    self->start(std::move(listener), false);
    return self;
  }
  auto connected = LocalSocket::connect(options.accepts_at, kConnectTime);
  if (!connected) {
    self->give_up();
    return connected.error();
  }
  self->start(std::move(connected.value()), true);
  return self;
}

Tunnel::Tunnel(const std::shared_ptr<grpc::Channel>& coordinator) : stub_(wire::Relay::NewStub(coordinator)) {}

Tunnel::~Tunnel() {
  if (!forward_.joinable()) return;
  end("this end of the tunnel was closed");
  context_.TryCancel();  // even if the relay sends nothing and does not end the call
  forward_.join();
}

Status Tunnel::join(const wire::Hello& hello, Duration timeout, const std::stop_token& stop) {
  CallTimeout watch([this] { context_.TryCancel(); }, timeout);
  Status joined;
  {
    const std::stop_callback on_stop(stop, [this] { context_.TryCancel(); });
    stream_ = stub_->Join(&context_);
    wire::Frame frame;
    *frame.mutable_hello() = hello;
    const bool answered = stream_->Write(frame) && stream_->Read(&frame);
    if (!answered || !frame.has_accepted()) {
      if (answered) context_.TryCancel();
      const auto said = finish();
      joined = Error{answered || said.empty() ? "whoever listens there does not speak thinpipe's protocol" : said};
    }
  }
  const bool expired = watch.expired();
  if (joined.ok() && !expired && !stop.stop_requested()) return {};
  if (joined.ok()) give_up();
  if (stop.stop_requested()) return Error{"no longer waiting for the other end of the tunnel"};
  if (expired) return Error{fmt::format("no answer of the relay within {}", format_duration(timeout))};
  return Error{fmt::format("the relay: {}", joined.error().message)};
}

void Tunnel::start(LocalSocket socket, bool connected) {
  socket_ = std::move(socket);
  connected_ = connected;
  forward_ = std::thread([this, connected] {
    std::thread outward([this, connected] {
      if (connected || accept()) move_out();
    });
    move_in();
    outward.join();
    if (const auto reason = finish(); !reason.empty()) log_debug("a tunnel ended: {}", reason);
    const std::lock_guard lock(mutex_);
    ended_ = true;
  });
}

void Tunnel::end(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (ended_ || call_ended_) return;
  ended_ = true;
  log_debug("a tunnel ends: {}", reason);
  socket_.interrupt();
  context_.TryCancel();
  changed_.notify_all();
}

// Replaces the listener with the connection, unless the tunnel has ended.
bool Tunnel::accept() {
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

void Tunnel::move_out() {
  wire::Frame frame;
  for (;;) {
    auto& bytes = *frame.mutable_tunnelled();
    bytes.resize(kMaxTunnelBytes);
    const auto got = socket_.receive(std::as_writable_bytes(std::span(bytes)));
    if (!got) return end(fmt::format("this side of the tunnel broke off: {}", got.error().message));
    bytes.resize(got.value());
    // If the call has ended, the other thread notices it and learns why.
    if (!stream_->Write(frame) || bytes.empty()) return;
  }
}

// Returns when the call ends.
void Tunnel::move_in() {
  wire::Frame frame;
  while (stream_->Read(&frame)) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return connected_ || ended_; });
      if (ended_) return;
    }
    const auto& bytes = frame.tunnelled();
    if (bytes.empty()) {
      socket_.end_sending();
    } else if (const auto sent = socket_.send(std::as_bytes(std::span(bytes))); !sent) {
      return end(fmt::format("this side of the tunnel broke off: {}", sent.error().message));
    }
  }
  const std::lock_guard lock(mutex_);
  call_ended_ = true;
  socket_.interrupt();  // the other thread may wait there
}

void Tunnel::give_up() {
  context_.TryCancel();
  (void)finish();
}

std::string Tunnel::finish() {
  const auto status = stream_->Finish();
  if (status.ok()) return "";
  return status.error_message().empty() ? "the call ended without a reason" : one_line(status.error_message());
}

}  // namespace thinpipe
