#include "net/link_service.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "base/line.h"
#include "base/units.h"
#include "net/call_timeout.h"
#include "net/grpc_link.h"
#include "net/packet.h"
#include "net/path_probe.h"

namespace thinpipe {
namespace {

constexpr auto kShutdownTime = std::chrono::milliseconds(500);
constexpr int kMaxStreamsPerConnection = 16;  // an honest peer has one, plus one echo

}  // namespace

// A stream. Lives in Exchange(); the mutex guards it.
struct LinkService::Call {
  grpc::ServerContext& context;
  Stream& stream;
  std::string peer;                       // first from the connection, then from the hello
  std::optional<wire::Hello> hello = {};  // set once it has its place
  bool answered = false;                  // may be taken; from then on only the link uses the stream
  bool taken = false;
  std::optional<std::string> dropped = {};  // the reason
  bool refused = false;                     // dropped because it was not the one to take
  std::promise<void> ended = {};            // nobody uses the stream any more
};

// Points into the call's Exchange(), which returns when the link is finished or destroyed.
class LinkService::AcceptedLink final : public Link {
 public:
  explicit AcceptedLink(Call& call)
      : context_(call.context), stream_(call.stream), peer_(one_line(call.peer)), ended_(std::move(call.ended)) {}
  ~AcceptedLink() override {
    cancel();
    (void)finish();
  }

  bool write(wire::Frame frame) override { return stream_.Write(frame); }
  void end_writing() override {}  // the return of Exchange() does this

  bool read(wire::Frame& frame) override {
    if (stream_.Read(&frame)) return true;
    // The dialler has closed the link, is gone, or has sent something that is not a frame. It may still be there
    // without reading: a write() must not wait for it.
    cancel();
    return false;
  }

  void cancel() override {
    const std::lock_guard lock(mutex_);
    if (!finished_) context_.TryCancel();
  }

  std::string finish() override {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(finished_, true)) ended_.set_value();
    // gRPC tells only clients how a call ended, not servers.
    return fmt::format("connection to {} lost: the stream broke off, or held what is not a frame or above the limit",
                       peer_);
  }

 private:
  grpc::ServerContext& context_;
  Stream& stream_;
  const std::string peer_;
  std::mutex mutex_;  // guards the rest; the context is gone once finished
  std::promise<void> ended_;
  bool finished_ = false;
};

LinkService::LinkService(LinkGate gate, OnRefused on_refused, Duration hello_time)
    : gate_(std::move(gate)), on_refused_(std::move(on_refused)), hello_time_(hello_time) {}

grpc::Status LinkService::Exchange(grpc::ServerContext* context, Stream* stream) {
  const auto caller = caller_of(*context);
  Call call{*context, *stream, caller.names.empty() ? caller.address : caller.names.front()};
  {
    const std::lock_guard lock(mutex_);
    if (shut_down_) return {grpc::StatusCode::UNAVAILABLE, *shut_down_};
    calls_.push_back(&call);
    drop_if_too_many();
  }
  auto opened = open(call, caller);
  if (opened.ok()) serve(call);
  const std::lock_guard lock(mutex_);
  std::erase(calls_, &call);
  return opened;
}

// Reads the hello, asks the gate and answers.
grpc::Status LinkService::open(Call& call, const Caller& caller) {
  wire::Frame frame;
  CallTimeout watch([&] { call.context.TryCancel(); }, hello_time_);
  const bool heard = call.stream.Read(&frame);
  if (watch.expired()) {
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "no hello within " + format_duration(hello_time_)};
  }
  if (!heard || !frame.has_hello()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the stream's first frame is not a hello"};
  }
  if (const auto allowed = gate_(frame.hello(), caller); !allowed) {
    return {grpc::StatusCode::PERMISSION_DENIED, allowed.error().message};
  }
  if (const auto placed = take_place(call, frame.hello()); !placed) {
    return {grpc::StatusCode::FAILED_PRECONDITION, placed.error().message};
  }
  frame.mutable_accepted();
  call.stream.Write(frame);
  return grpc::Status::OK;
}

// Gives the call its place, so that streams replace each other in the order of their admission.
Status LinkService::take_place(Call& call, const wire::Hello& hello) {
  const std::lock_guard lock(mutex_);
  if (call.dropped) return Error{*call.dropped};
  const auto same = std::find_if(calls_.begin(), calls_.end(), [&](const Call* other) {
    return other->hello && other->hello->boundary() == hello.boundary() && other->hello->peer() == hello.peer();
  });
  if (same != calls_.end()) {
    const auto& other = *(*same)->hello;
    if (other.epoch() > hello.epoch()) {
      return Error{
          fmt::format("boundary {} is at epoch {} already, not {}", other.boundary(), other.epoch(), hello.epoch())};
    }
    drop(**same, fmt::format("a newer stream for boundary {} took its place", other.boundary()));
  }
  call.hello = hello;
  call.peer = hello.peer();
  return {};
}

// Returns when the stream is dropped, or taken and over.
void LinkService::serve(Call& call) {
  auto ended = call.ended.get_future();
  std::unique_lock lock(mutex_);
  call.answered = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return call.dropped || call.taken; });
  lock.unlock();
  if (call.taken) return ended.wait();
  call.stream.Write(last_word_frame(*call.dropped));
  if (call.refused && on_refused_) on_refused_(one_line(*call.dropped));
}

void LinkService::drop(Call& call, std::string reason) {
  call.dropped = std::move(reason);
  if (!call.hello) call.context.TryCancel();  // it may be waiting for its hello
  std::erase(calls_, &call);
  changed_.notify_all();
}

void LinkService::drop_if_too_many() {
  if (calls_.size() <= kMaxWaiting) return;
  const auto streams_of = [&](const Call* call) {
    return std::count_if(calls_.begin(), calls_.end(), [&](const Call* other) { return other->peer == call->peer; });
  };
  auto* oldest_of_busiest = *std::max_element(
      calls_.begin(), calls_.end(), [&](const Call* a, const Call* b) { return streams_of(a) < streams_of(b); });
  drop(*oldest_of_busiest, fmt::format("more than {} streams wait, and this is the oldest of its peer's", kMaxWaiting));
}

Result<std::unique_ptr<Link>> LinkService::wait_for(int64_t boundary, uint64_t epoch, const std::string& from_peer,
                                                    const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Call* call = nullptr;
  changed_.wait(lock, stop, [&] { return shut_down_ || (call = waiting_call(boundary, epoch, from_peer)) != nullptr; });
  if (shut_down_) return Error{*shut_down_};
  if (call == nullptr) return Error{fmt::format("no longer waiting for the link of boundary {}", boundary)};
  std::erase(calls_, call);
  std::unique_ptr<Link> link = std::make_unique<AcceptedLink>(*call);
  call->taken = true;
  changed_.notify_all();
  return link;
}

LinkService::Call* LinkService::waiting_call(int64_t boundary, uint64_t epoch, const std::string& from_peer) {
  Call* found = nullptr;
  const auto all = calls_;  // drop() changes it
  for (auto* call : all) {
    if (!call->hello || call->hello->boundary() != boundary || call->hello->epoch() > epoch) continue;
    const auto& hello = *call->hello;
    if (hello.epoch() < epoch || call->context.IsCancelled()) {
      drop(*call, fmt::format("boundary {} is at epoch {} now, not {}", boundary, epoch, hello.epoch()));
    } else if (!from_peer.empty() && hello.peer() != from_peer) {
      call->refused = true;
      drop(*call,
           fmt::format("boundary {} of epoch {} belongs to {}, not to {}", boundary, epoch, from_peer, hello.peer()));
    } else if (call->answered) {
      found = call;
    }
  }
  return found;
}

void LinkService::shutdown(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (shut_down_) return;
  shut_down_ = reason;
  const auto all = calls_;
  for (auto* call : all) drop(*call, reason);
  changed_.notify_all();
}

grpc::Status LinkService::Echo(grpc::ServerContext*, const wire::EchoRequest* request, wire::EchoReply* reply) {
  if (const size_t most = std::max<size_t>(request->answer_bytes(), request->payload().size()); most > kMaxEchoBytes) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            fmt::format("an echo of {} bytes, the most is {}", most, kMaxEchoBytes)};
  }
  reply->mutable_payload()->resize(request->answer_bytes());
  return grpc::Status::OK;
}

LinkServer::LinkServer(LinkGate gate, OnRefused on_refused) : service_(std::move(gate), std::move(on_refused)) {}

LinkServer::~LinkServer() { shutdown("the other end's server is gone"); }

Result<std::unique_ptr<LinkServer>> LinkServer::start(const std::vector<std::string>& listen_addresses,
                                                      size_t max_payload_bytes, LinkGate gate,
                                                      std::shared_ptr<grpc::ServerCredentials> credentials,
                                                      OnRefused on_refused) {
  TP_CHECK(!listen_addresses.empty(), "a server that listens nowhere");
  if (!credentials) credentials = grpc::InsecureServerCredentials();
  prepare_grpc();
  std::unique_ptr<LinkServer> self(new LinkServer(std::move(gate), std::move(on_refused)));
  grpc::ServerBuilder builder;
  self->ports_.resize(listen_addresses.size());
  for (size_t i = 0; i < listen_addresses.size(); ++i) {
    builder.AddListeningPort(listen_addresses[i], credentials, &self->ports_[i]);
  }
  builder.RegisterService(&self->service_);
  builder.SetMaxReceiveMessageSize(max_frame_bytes(std::max(max_payload_bytes, kMaxEchoBytes)));
  builder.SetResourceQuota(grpc::ResourceQuota("links").Resize(max_held_bytes(max_payload_bytes)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two servers could share a port unnoticed
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  // Diallers ping as often as this end does; by default gRPC would hang up on them.
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
  // Cancels calls that have not ended by then, and waits for the handlers to return.
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownTime);
  server_.reset();
}

}  // namespace thinpipe
