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

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "net/call_metadata.h"
#include "net/echo.h"
#include "net/stream_link.h"
#include "net/tls.h"

namespace thinpipe {
namespace {

using AcceptedStream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

constexpr auto kShutdownTime = std::chrono::milliseconds(500);

// Points into the handler of the call, which returns when the pump has ended.
class ServerStream final : public ByteStream {
 public:
  ServerStream(grpc::ServerContext& context, AcceptedStream& stream) : context_(context), stream_(stream) {}

  bool read(grpc::ByteBuffer& buffer) override { return stream_.Read(&buffer); }
  bool write(const grpc::ByteBuffer& buffer) override { return stream_.Write(buffer); }
  void writes_done() override {}  // the handler's return says it
  void abandon() override { context_.TryCancel(); }
  void cancel() override { context_.TryCancel(); }
  // gRPC tells a client how its call ended, and a server nothing.
  std::string finish() override { return "the stream broke off, or held a message above the server's limit"; }

 private:
  grpc::ServerContext& context_;
  AcceptedStream& stream_;
};

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
  Exchange(LinkGate gate, LinkHooks hooks) : gate_(std::move(gate)), hooks_(std::move(hooks)) {
    using Handler = grpc::internal::BidiStreamingHandler<Exchange, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(  // gRPC takes both
        kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING,
        new Handler(
            [](Exchange* self, grpc::ServerContext* context, AcceptedStream* stream) { return self->run(*context, *stream); },
            this)));
    using EchoHandler = grpc::internal::RpcMethodHandler<Exchange, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        kEchoMethod, grpc::internal::RpcMethod::NORMAL_RPC,
        new EchoHandler([](Exchange* self, grpc::ServerContext* context, const grpc::ByteBuffer* request,
                           grpc::ByteBuffer* answer) { return self->echo(*context, *request, *answer); },
                        this)));
  }

  Result<std::unique_ptr<Link>> wait_for(int64_t boundary, uint64_t epoch, const std::string& from_peer,
                                         const LinkLimits& limits, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    Call* call = nullptr;
    changed_.wait(lock, stop,
                  [&] { return shut_down_ || (call = waiting_call(boundary, epoch, from_peer)) != nullptr; });
    if (shut_down_) return Error{*shut_down_};
    if (call == nullptr) return Error{fmt::format("no longer waiting for the link of boundary {}", boundary)};
    std::erase(waiting_, call);
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
    AcceptedStream& stream;
    bool answered = false;                              // and may be taken: from then on the pump alone uses the stream
    std::optional<std::string> dropped = std::nullopt;  // the reason
    bool refused = false;                               // dropped because it was not the one to take
    std::shared_ptr<StreamPump> pump = nullptr;         // taken
  };

  grpc::Status echo(const grpc::ServerContext& context, const grpc::ByteBuffer& request, grpc::ByteBuffer& answer) {
    if (hooks_.may_measure) {
      if (const auto allowed = hooks_.may_measure(caller_of(context)); !allowed) {
        return {grpc::StatusCode::PERMISSION_DENIED, allowed.error().message};
      }
    }
    const auto made = echo_answer(request);
    if (!made) return {grpc::StatusCode::INVALID_ARGUMENT, made.error().message};
    answer = made.value();
    return grpc::Status::OK;
  }

  grpc::Status run(grpc::ServerContext& context, AcceptedStream& stream) {
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
    const auto& hello = call.hello;
    const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const Call* other) {
      return other->hello.boundary == hello.boundary && other->hello.from_peer == hello.from_peer;
    });
    if (same != waiting_.end()) {
      const auto& other = (*same)->hello;
      if (other.epoch > hello.epoch) {
        return Error{
            fmt::format("boundary {} is at epoch {} already, not {}", other.boundary, other.epoch, hello.epoch)};
      }
      drop(*same, fmt::format("a newer stream for boundary {} took its place", other.boundary));
    }
    waiting_.push_back(&call);
    if (waiting_.size() > kMaxWaiting) {
      drop(oldest_of_busiest(),
           fmt::format("more than {} streams wait, and this is the oldest of its peer's", kMaxWaiting));
    }
    calls_.insert(&call);
    return {};
  }

  // With the mutex held, as the next two.
  void drop(Call* call, std::string reason) {
    call->dropped = std::move(reason);
    std::erase(waiting_, call);
    changed_.notify_all();
  }

  Call* oldest_of_busiest() const {
    const auto streams_of = [&](const Call* call) {
      return std::count_if(waiting_.begin(), waiting_.end(),
                           [&](const Call* other) { return other->hello.from_peer == call->hello.from_peer; });
    };
    return *std::max_element(waiting_.begin(), waiting_.end(),
                             [&](const Call* a, const Call* b) { return streams_of(a) < streams_of(b); });
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
    if (call.refused && hooks_.on_refused) hooks_.on_refused(one_line(*call.dropped));
  }

  // The one to take; drops those that are of no use any more.
  Call* waiting_call(int64_t boundary, uint64_t epoch, const std::string& from_peer) {
    Call* found = nullptr;
    const auto all = waiting_;  // drop() changes it
    for (auto* call : all) {
      const auto& hello = call->hello;
      if (hello.boundary != boundary || hello.epoch > epoch) continue;
      if (hello.epoch < epoch || call->context.IsCancelled()) {
        drop(call, fmt::format("boundary {} is at epoch {} now, not {}", boundary, epoch, hello.epoch));
      } else if (!from_peer.empty() && hello.from_peer != from_peer) {
        call->refused = true;
        drop(call, fmt::format("boundary {} of epoch {} belongs to {}, not to {}", boundary, epoch, from_peer,
                               hello.from_peer));
      } else if (call->answered) {
        found = call;
      }
    }
    return found;
  }

  const LinkGate gate_;
  const LinkHooks hooks_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<std::string> shut_down_;  // the reason
  std::vector<Call*> waiting_;            // in the order in which they came
  std::set<Call*> calls_;                 // waiting, taken or about to leave
};

LinkService::LinkService(LinkGate gate, LinkHooks hooks)
    : exchange_(std::make_unique<Exchange>(std::move(gate), std::move(hooks))) {}
LinkService::~LinkService() = default;

Result<std::unique_ptr<Link>> LinkService::wait_for(int64_t boundary, uint64_t epoch, const std::string& from_peer,
                                                    const LinkLimits& limits, const std::stop_token& stop) {
  return exchange_->wait_for(boundary, epoch, from_peer, limits, stop);
}

void LinkService::shutdown(const std::string& reason) { exchange_->shutdown(reason); }

grpc::Service& LinkService::grpc_service() { return *exchange_; }

LinkServer::LinkServer(LinkGate gate, LinkHooks hooks) : service_(std::move(gate), std::move(hooks)) {}

LinkServer::~LinkServer() { shutdown("the other end's server is gone"); }

Result<std::unique_ptr<LinkServer>> LinkServer::start(const std::string& listen_address, size_t max_message_bytes,
                                                      LinkGate gate,
                                                      std::shared_ptr<grpc::ServerCredentials> credentials,
                                                      LinkHooks hooks) {
  return start(std::vector{listen_address}, max_message_bytes, std::move(gate), std::move(credentials),
               std::move(hooks));
}

Result<std::unique_ptr<LinkServer>> LinkServer::start(const std::vector<std::string>& listen_addresses,
                                                      size_t max_message_bytes, LinkGate gate,
                                                      std::shared_ptr<grpc::ServerCredentials> credentials,
                                                      LinkHooks hooks) {
  TP_CHECK(!listen_addresses.empty(), "a server that listens nowhere");
  if (!credentials) credentials = grpc::InsecureServerCredentials();
  prepare_grpc();
  std::unique_ptr<LinkServer> self(new LinkServer(std::move(gate), std::move(hooks)));
  grpc::ServerBuilder builder;
  self->ports_.resize(listen_addresses.size());
  for (size_t i = 0; i < listen_addresses.size(); ++i) {
    builder.AddListeningPort(listen_addresses[i], credentials, &self->ports_[i]);
  }
  builder.RegisterService(&self->service_.grpc_service());
  // One limit for both methods; a link that takes less says so itself.
  builder.SetMaxReceiveMessageSize(max_buffer_bytes(std::max(max_message_bytes, kMaxEchoBytes + kEchoHeaderBytes)));
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
  for (size_t i = 0; i < listen_addresses.size(); ++i) {
    if (self->server_ && self->ports_[i] != 0) continue;
    return Error{fmt::format("cannot listen on {}: not an address of this machine, or taken", listen_addresses[i])};
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
