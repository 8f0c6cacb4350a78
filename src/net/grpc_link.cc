#include "net/grpc_link.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "net/opening_timeout.h"
#include "net/path_probe.h"
#include "net/stream_link.h"

namespace thinpipe {
namespace {

using Stream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
using StreamFactory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;

grpc::ChannelArguments channel_arguments(size_t max_message_bytes, const std::string& expected_name) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_buffer_bytes(max_message_bytes));
  arguments.SetResourceQuota(grpc::ResourceQuota("link").Resize(max_held_bytes(max_message_bytes)));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // never a connection that an earlier link left half dead
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // a stream cannot be repeated
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  if (!expected_name.empty()) arguments.SetSslTargetNameOverride(expected_name);
  return arguments;
}

// The members are destroyed from the last to the first, as gRPC needs it.
class ClientStream final : public ByteStream {
 public:
  ClientStream(std::shared_ptr<grpc::Channel> channel, const LinkHello& hello) : channel_(std::move(channel)) {
    context_.AddMetadata(kRunKey, hello.run);
    context_.AddMetadata(kPeerKey, hello.from_peer);
    context_.AddMetadata(kBoundaryKey, std::to_string(hello.boundary));
    context_.AddMetadata(kEpochKey, std::to_string(hello.epoch));
  }

  // Waits for the answer, until cancel(). Not accepted: the server's reason, or gRPC's.
  Status open() {
    const grpc::internal::RpcMethod method(kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel_);
    stream_.reset(StreamFactory::Create(channel_.get(), method, &context_));
    stream_->WaitForInitialMetadata();
    if (context_.GetServerInitialMetadata().contains(kAcceptedKey)) return {};
    const auto status = stream_->Finish();
    return Error{status.ok() ? "whoever listens there does not speak thinpipe's protocol" : status.error_message()};
  }

  bool read(grpc::ByteBuffer& buffer) override { return stream_->Read(&buffer); }
  bool write(const grpc::ByteBuffer& buffer) override { return stream_->Write(buffer); }
  void writes_done() override { stream_->WritesDone(); }
  void abandon() override {}  // a server that has stopped sending has ended the call
  void cancel() override { context_.TryCancel(); }
  std::string finish() override {
    const auto status = stream_->Finish();
    return status.ok() ? "it ended the stream without a reason" : status.error_message();
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

void prepare_grpc() {
  static const bool done = [] {
    gpr_set_log_function([](gpr_log_func_args* line) { log_debug("gRPC: {}", line->message); });
    grpc_init();
    return true;
  }();
  (void)done;
}

Result<std::unique_ptr<Link>> dial_link(const std::string& address, const LinkHello& hello, const LinkLimits& limits,
                                        Duration timeout, std::shared_ptr<grpc::ChannelCredentials> credentials,
                                        const std::string& expected_name, PathFacts* measured) {
  prepare_grpc();
  if (!credentials) credentials = grpc::InsecureChannelCredentials();
  const size_t largest = std::max(limits.max_message_bytes, measured != nullptr ? kProbeMessageBytes : 0);
  auto channel = grpc::CreateCustomChannel(address, credentials, channel_arguments(largest, expected_name));
  if (measured != nullptr) *measured = TRY(probe_path(address, channel, timeout));
  auto stream = std::make_unique<ClientStream>(std::move(channel), hello);
  OpeningTimeout watch([&opening = *stream] { opening.cancel(); }, timeout);
  const auto opened = stream->open();
  if (watch.expired()) return Error{fmt::format("{}: no answer within {}", address, format_duration(timeout))};
  if (!opened.ok()) return Error{fmt::format("{}: {}", address, one_line(opened.error().message))};
  return make_stream_link(std::make_shared<StreamPump>(
      std::move(stream), StreamLinkOptions{.peer = address,
                                           .capacity_out = limits.capacity_down,
                                           .capacity_in = limits.capacity_up,
                                           .max_message_bytes = limits.max_message_bytes}));
}

}  // namespace thinpipe
