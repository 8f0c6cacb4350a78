// A gRPC client that may send any frames to a worker's port or to the relay.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "proto/frame.grpc.pb.h"

namespace thinpipe {

inline std::shared_ptr<grpc::Channel> plain_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

inline wire::Frame hello_frame(const wire::Hello& hello) {
  wire::Frame frame;
  *frame.mutable_hello() = hello;
  return frame;
}

class RawCall {
 public:
  enum class To { kLinks, kRelay };

  RawCall(const std::shared_ptr<grpc::Channel>& channel, To to) : channel_(channel) {
    // On a busy machine a connection may need a second try; these tests are about the server's answer.
    context_.set_wait_for_ready(true);
    if (to == To::kLinks) stream_ = wire::Links::NewStub(channel_)->Exchange(&context_);
    if (to == To::kRelay) stream_ = wire::Relay::NewStub(channel_)->Join(&context_);
  }
  ~RawCall() {
    context_.TryCancel();
    if (!finished_) (void)stream_->Finish();
  }
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  bool write(const wire::Frame& frame) { return stream_->Write(frame); }
  // Returns a frame of kind 0 at the end.
  wire::Frame read() {
    wire::Frame frame;
    if (!stream_->Read(&frame)) frame.Clear();
    return frame;
  }
  bool accepted() { return read().has_accepted(); }
  void half_close() { stream_->WritesDone(); }
  void cancel() { context_.TryCancel(); }
  // Waits for the server to end the call; says why.
  Error reason() {
    while (read().what_case() != wire::Frame::WHAT_NOT_SET) continue;
    finished_ = true;
    return {stream_->Finish().error_message()};
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<wire::Frame, wire::Frame>> stream_;
  bool finished_ = false;
};

}  // namespace thinpipe
