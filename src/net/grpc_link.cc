#include "net/grpc_link.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/line.h"
#include "base/log.h"
#include "base/units.h"
#include "net/call_timeout.h"
#include "net/packet.h"
#include "net/path_probe.h"
#include "proto/frame.grpc.pb.h"

namespace thinpipe {
namespace {

// How long the other side may take to end its call after its last frame.
constexpr auto kCallEndTime = std::chrono::milliseconds(500);

grpc::ChannelArguments link_arguments(size_t max_payload_bytes, const std::string& expected_name) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_frame_bytes(max_payload_bytes));
  arguments.SetResourceQuota(grpc::ResourceQuota("link").Resize(max_held_bytes(max_payload_bytes)));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // never reuse a half-dead connection
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // a stream cannot be repeated
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  if (!expected_name.empty()) arguments.SetSslTargetNameOverride(expected_name);
  return arguments;
}

// The order of the members matters: gRPC needs them destroyed from the last to the first.
class DialledLink final : public Link {
 public:
  DialledLink(std::string address, const std::shared_ptr<grpc::Channel>& channel)
      : address_(std::move(address)), stub_(wire::Links::NewStub(channel)) {}

  ~DialledLink() override {
    if (finished_ || !stream_) return;
    context_.TryCancel();
    (void)stream_->Finish();
  }

  // Waits for the answer. If not accepted, returns the server's or gRPC's reason.
  Status open(const wire::Hello& hello, Duration timeout) {
    CallTimeout watch([this] { context_.TryCancel(); }, timeout);
    stream_ = stub_->Exchange(&context_);
    wire::Frame frame;
    *frame.mutable_hello() = hello;
    const bool answered = stream_->Write(frame) && stream_->Read(&frame);
    if (!answered || !frame.has_accepted()) {
      if (answered) context_.TryCancel();
      const auto status = stream_->Finish();
      finished_ = true;
      if (!watch.expired()) {
        const bool strange = answered || status.ok();
        return Error{strange ? "whoever listens there does not speak thinpipe's protocol" : status.error_message()};
      }
    }
    if (watch.expired()) return Error{fmt::format("no answer within {}", format_duration(timeout))};
    return {};
  }

  bool write(wire::Frame frame) override { return stream_->Write(frame); }
  void end_writing() override { stream_->WritesDone(); }

  bool read(wire::Frame& frame) override {
    if (stream_->Read(&frame)) return true;
    // The call has ended, or the message was not a frame. Then the other side may neither end the call nor read on.
    call_end_.emplace([this] { context_.TryCancel(); }, kCallEndTime);
    return false;
  }

  void cancel() override { context_.TryCancel(); }

  std::string finish() override {
    const auto status = stream_->Finish();
    finished_ = true;
    // If gRPC knew the end of the call before it was cancelled, its reason counts, however late this thread comes.
    const bool lingered = call_end_ && call_end_->expired() && status.error_code() == grpc::StatusCode::CANCELLED;
    return one_line(fmt::format("connection to {} lost: {}", address_,
                                lingered      ? "it sent what is not a frame, or stopped sending without a reason"
                                : status.ok() ? "it ended the stream without a reason"
                                              : status.error_message()));
  }

 private:
  const std::string address_;
  std::unique_ptr<wire::Links::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wire::Frame, wire::Frame>> stream_;
  std::optional<CallTimeout> call_end_;
  bool finished_ = false;
};

}  // namespace

wire::Hello link_hello(const std::string& run, const std::string& from_peer, int64_t boundary, uint64_t epoch) {
  wire::Hello hello;
  hello.set_run(run);
  hello.set_peer(from_peer);
  hello.set_boundary(boundary);
  hello.set_epoch(epoch);
  return hello;
}

int max_frame_bytes(size_t max_payload_bytes) {
  constexpr size_t kLeast = 4096;  // enough for hellos and last words
  constexpr size_t kMost = std::numeric_limits<int>::max() - kFrameOverheadBytes;
  return static_cast<int>(std::clamp(max_payload_bytes, kLeast, kMost) + kFrameOverheadBytes);
}

// Room for several frames, and for what flow control lets an honest peer send ahead on a long fast line.
size_t max_held_bytes(size_t max_payload_bytes) {
  return (size_t{32} << 20) + 8 * static_cast<size_t>(max_frame_bytes(max_payload_bytes));
}

void prepare_grpc() {
  static const bool done = [] {
    gpr_set_log_function([](gpr_log_func_args* line) { log_debug("gRPC: {}", line->message); });
    grpc_init();
    return true;
  }();
  (void)done;
}

Result<std::unique_ptr<Link>> dial_link(const std::string& address, const wire::Hello& hello, size_t max_payload_bytes,
                                        Duration timeout, std::shared_ptr<grpc::ChannelCredentials> credentials,
                                        const std::string& expected_name, PathFacts* measured) {
  prepare_grpc();
  if (!credentials) credentials = grpc::InsecureChannelCredentials();
  const size_t largest = std::max(max_payload_bytes, measured != nullptr ? kMaxEchoBytes : 0);
  const auto channel = grpc::CreateCustomChannel(address, credentials, link_arguments(largest, expected_name));
  if (measured != nullptr) *measured = TRY(probe_path(address, channel, timeout));
  auto link = std::make_unique<DialledLink>(address, channel);
  if (const auto opened = link->open(hello, timeout); !opened) {
    return Error{fmt::format("{}: {}", address, one_line(opened.error().message))};
  }
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace thinpipe
