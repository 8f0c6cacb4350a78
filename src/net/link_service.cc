#include "net/link_service.h"

#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "net/stream_link.h"

namespace thinpipe {
namespace {

using Stream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

constexpr auto kShutdownTime = std::chrono::milliseconds(500);

// Points into the handler of the call, which returns when the pump has ended.
class ServerStream final : public ByteStream {
 public:
  ServerStream(grpc::ServerContext& context, Stream& stream) : context_(context), stream_(stream) {}

  bool read(grpc::ByteBuffer& buffer) override { return stream_.Read(&buffer); }
  bool write(const grpc::ByteBuffer& buffer) override { return stream_.Write(buffer); }
  void writes_done() override {}  // the handler's return says it
  void abandon() override { context_.TryCancel(); }
  void cancel() override { context_.TryCancel(); }
  // gRPC tells a client how its call ended, and a server nothing.
  std::string finish() override { return "the stream broke off, or held a message above the server's limit"; }

 private:
  grpc::ServerContext& context_;
  Stream& stream_;
};

Result<std::string> metadata_text(const grpc::ServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  if (metadata.count(key) != 1) return Error{fmt::format("the stream's metadata holds no {}, or several", key)};
  const auto value = metadata.find(key)->second;
  return std::string(value.data(), value.size());
}

template <class Number>
Result<Number> metadata_number(const grpc::ServerContext& context, const char* key) {
  const auto text = metadata_text(context, key);
  if (!text) return text.error();
  Number number{};
  const char* end = text.value().data() + text.value().size();
  const auto [stopped, fault] = std::from_chars(text.value().data(), end, number);
  if (fault != std::errc{} || stopped != end) return Error{fmt::format("{} is '{}', not a number", key, text.value())};
  return number;
}

Result<LinkHello> read_hello(const grpc::ServerContext& context) {
  const auto run = metadata_text(context, kRunKey);
  if (!run) return run.error();
  const auto peer = metadata_text(context, kPeerKey);
  if (!peer) return peer.error();
  const auto boundary = metadata_number<int64_t>(context, kBoundaryKey);
  if (!boundary) return boundary.error();
  const auto epoch = metadata_number<uint64_t>(context, kEpochKey);
  if (!epoch) return epoch.error();
  return LinkHello{run.value(), peer.value(), boundary.value(), epoch.value()};
}

}  // namespace

// The handler of a stream stays in run() for the stream's life: first the stream waits to be taken, then for its end.
class LinkService::Exchange final : public grpc::Service {
 public:
  explicit Exchange(LinkGate gate) : gate_(std::move(gate)) {
    using Handler = grpc::internal::BidiStreamingHandler<Exchange, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(  // gRPC takes both
        kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING,
        new Handler(
            [](Exchange* self, grpc::ServerContext* context, Stream* stream) { return self->run(*context, *stream); },
            this)));
  }

  Result<std::unique_ptr<Link>> wait_for(int64_t boundary, uint64_t epoch, const LinkLimits& limits,
                                         const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    Call* call = nullptr;
    changed_.wait(lock, stop, [&] { return shut_down_ || (call = waiting_call(boundary, epoch)) != nullptr; });
    if (shut_down_) return Error{*shut_down_};
    if (call == nullptr) return Error{fmt::format("no longer waiting for the link of boundary {}", boundary)};
    waiting_.erase(boundary);
    call->pump = std::make_shared<StreamPump>(std::make_unique<ServerStream>(call->context, call->stream),
                                              StreamLinkOptions{.peer = one_line(call->hello.from_peer),
                                                                .capacity_out = limits.capacity_up,
                                                                .capacity_in = limits.capacity_down,
                                                                .max_message_bytes = limits.max_message_bytes});
    changed_.notify_all();
    return make_stream_link(call->pump);
  }

  void shutdown(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (shut_down_) return;
    shut_down_ = reason;
    waiting_.clear();
    for (auto* call : calls_) {
      if (call->pump) {
        call->pump->close(reason);
      } else {
        call->dropped = reason;
      }
    }
    changed_.notify_all();
  }

 private:
  // A stream that was let in; lives in run(), guarded by the mutex.
  struct Call {
    LinkHello hello;
    grpc::ServerContext& context;
    Stream& stream;
    bool answered = false;                              // and may be taken: from then on the pump alone uses the stream
    std::optional<std::string> dropped = std::nullopt;  // the reason
    std::shared_ptr<StreamPump> pump = nullptr;         // taken
  };

  grpc::Status run(grpc::ServerContext& context, Stream& stream) {
    const auto hello = read_hello(context);
    if (!hello) return {grpc::StatusCode::INVALID_ARGUMENT, hello.error().message};
    if (const auto allowed = gate_(hello.value(), caller_of(context)); !allowed) {
      return {grpc::StatusCode::PERMISSION_DENIED, allowed.error().message};
    }
    Call call{.hello = hello.value(), .context = context, .stream = stream};
    if (const auto refused = admit(call); !refused.ok()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, refused.error().message};
    }
    context.AddInitialMetadata(kAcceptedKey, "1");
    stream.SendInitialMetadata();
    serve(call);
    return grpc::Status::OK;
  }

  // From here on the call has its place, so that streams replace each other in the order in which they are let in.
  Status admit(Call& call) {
    const std::lock_guard lock(mutex_);
    if (shut_down_) return Error{*shut_down_};
    const auto [slot, is_new] = waiting_.try_emplace(call.hello.boundary, &call);
    if (!is_new) {
      const auto& other = slot->second->hello;
      if (other.epoch > call.hello.epoch) {
        return Error{
            fmt::format("boundary {} is at epoch {} already, not {}", other.boundary, other.epoch, call.hello.epoch)};
      }
      slot->second->dropped = fmt::format("a newer stream for boundary {} took its place", other.boundary);
      slot->second = &call;
      changed_.notify_all();
    }
    calls_.insert(&call);
    return {};
  }

  void serve(Call& call) {
    std::unique_lock lock(mutex_);
    call.answered = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return call.dropped || call.pump; });
    if (const auto pump = call.pump) {
      lock.unlock();
      pump->wait_until_ended();
      lock.lock();
    }
    calls_.erase(&call);
    if (!call.dropped) return;
    lock.unlock();
    call.stream.Write(last_word(*call.dropped));
  }

  // The one to take; drops one that is of no use any more. With the mutex held.
  Call* waiting_call(int64_t boundary, uint64_t epoch) {
    const auto slot = waiting_.find(boundary);
    if (slot == waiting_.end() || slot->second->hello.epoch > epoch) return nullptr;
    Call& call = *slot->second;
    if (call.hello.epoch == epoch && !call.context.IsCancelled()) return call.answered ? &call : nullptr;
    call.dropped = fmt::format("boundary {} is at epoch {} now, not {}", boundary, epoch, call.hello.epoch);
    waiting_.erase(slot);
    changed_.notify_all();
    return nullptr;
  }

  const LinkGate gate_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<std::string> shut_down_;  // the reason
  std::map<int64_t, Call*> waiting_;      // by boundary
  std::set<Call*> calls_;                 // waiting, taken or about to leave
};

LinkService::LinkService(LinkGate gate) : exchange_(std::make_unique<Exchange>(std::move(gate))) {}
LinkService::~LinkService() = default;

Result<std::unique_ptr<Link>> LinkService::wait_for(int64_t boundary, uint64_t epoch, const LinkLimits& limits,
                                                    const std::stop_token& stop) {
  return exchange_->wait_for(boundary, epoch, limits, stop);
}

void LinkService::shutdown(const std::string& reason) { exchange_->shutdown(reason); }

grpc::Service& LinkService::grpc_service() { return *exchange_; }

LinkServer::LinkServer(LinkGate gate) : service_(std::move(gate)) {}

LinkServer::~LinkServer() { shutdown("the other end's server is gone"); }

Result<std::unique_ptr<LinkServer>> LinkServer::start(const std::string& listen_address, size_t max_message_bytes,
                                                      LinkGate gate,
                                                      std::shared_ptr<grpc::ServerCredentials> credentials) {
  if (!credentials) credentials = grpc::InsecureServerCredentials();
  prepare_grpc();
  std::unique_ptr<LinkServer> self(new LinkServer(std::move(gate)));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen_address, credentials, &self->port_);
  builder.RegisterService(&self->service_.grpc_service());
  builder.SetMaxReceiveMessageSize(max_buffer_bytes(max_message_bytes));
  builder.SetResourceQuota(grpc::ResourceQuota("links").Resize(max_held_bytes(max_message_bytes)));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two servers could share a port and not know
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  // Diallers ask as often as this end does; by default gRPC would hang up on them.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveMs / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  self->server_ = builder.BuildAndStart();
  if (!self->server_ || self->port_ == 0) {
    return Error{fmt::format("cannot listen on {}: not an address of this machine, or taken", listen_address)};
  }
  return self;
}

void LinkServer::shutdown(const std::string& reason) {
  service_.shutdown(reason);
  if (!server_) return;
  // Cancels what has not ended by then, and waits for the handlers to return.
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownTime);
  server_.reset();
}

}  // namespace thinpipe
