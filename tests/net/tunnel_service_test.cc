// The relay's side: who is let in, who replaces whom, and what is done about ends that break the rules.
#include "net/tunnel_service.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "net/link_conformance.h"
#include "net/relayed_links.h"
#include "net/stream_link.h"

namespace thinpipe {
namespace {

// An end that speaks gRPC, and otherwise does what it likes.
class RawEnd {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  RawEnd(const RelayServer& relay, const Metadata& metadata) : RawEnd(relay.channel(), metadata) {}
  RawEnd(const std::shared_ptr<grpc::Channel>& channel, const Metadata& metadata)
      : channel_(channel), method_(kTunnelMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel_) {
    // On a busy machine a connection may need a second try: what is asked is what the relay says, not the first try.
    context_.set_wait_for_ready(true);
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    stream_.reset(grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
        channel_.get(), method_, &context_));
  }
  ~RawEnd() {
    context_.TryCancel();
    if (!finished_) (void)stream_->Finish();
  }

  bool joined() {
    stream_->WaitForInitialMetadata();
    return context_.GetServerInitialMetadata().contains(kJoinedKey);
  }
  bool write(size_t bytes) {
    const grpc::Slice slice(std::string(bytes, 'x'));
    return stream_->Write(grpc::ByteBuffer(&slice, 1));
  }
  size_t read() {
    grpc::ByteBuffer buffer;
    return stream_->Read(&buffer) ? buffer.Length() : SIZE_MAX;
  }
  void cancel() { context_.TryCancel(); }
  void half_close() { stream_->WritesDone(); }
  Error reason() {
    grpc::ByteBuffer buffer;
    while (stream_->Read(&buffer)) buffer.Clear();
    finished_ = true;
    return {stream_->Finish().error_message()};
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::internal::RpcMethod method_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
  bool finished_ = false;
};

RawEnd::Metadata metadata_for(bool dials) {
  return {{kRunKey, "a run"}, {kBoundaryKey, "0"}, {kEpochKey, "1"}, {kDialsKey, dials ? "1" : "0"}};
}

TEST(TunnelService, TheGateHearsWhatAnEndSaysAndItsRefusalIsPassedOn) {
  TunnelHello heard;
  LinkCaller from;
  RelayServer relay([&](const TunnelHello& hello, const LinkCaller& caller) {
    heard = hello;
    from = caller;
    return Status(Error{"stage 7 is not of this run\nat all"});
  });
  const TunnelHello said{"a run\n\xff", -3, UINT64_MAX, true};
  const auto end = Tunnel::open(relay.channel(), said);
  ASSERT_FALSE(end.ok());
  EXPECT_TRUE(holds(end.error(), "stage 7 is not of this run at all"));
  EXPECT_EQ(heard, said);
  EXPECT_NE(from.address.find("127.0.0.1"), std::string::npos) << from.address;
  EXPECT_TRUE(from.names.empty());
}

TEST(TunnelService, RefusesAnEndThatDoesNotSayWhoItIs) {
  RelayServer relay;
  const auto good = metadata_for(true);
  for (size_t missing = 0; missing < good.size(); ++missing) {
    auto metadata = good;
    metadata.erase(metadata.begin() + static_cast<std::ptrdiff_t>(missing));
    EXPECT_TRUE(holds(RawEnd(relay, metadata).reason(), good[missing].first));
    metadata = good;
    metadata.push_back(metadata[missing]);
    EXPECT_TRUE(holds(RawEnd(relay, metadata).reason(), good[missing].first));
  }
  for (const size_t at : {1, 2, 3}) {
    for (const std::string number : {"", "x", "1x", "1 ", "99999999999999999999999", "0.5"}) {
      auto metadata = good;
      metadata[at].second = number;
      EXPECT_TRUE(holds(RawEnd(relay, metadata).reason(), good[at].first)) << number;
    }
  }
}

TEST(TunnelService, ABufferAboveTheLimitEndsBoth) {
  RelayServer relay;
  for (const bool dialling_errs : {true, false}) {
    RawEnd dialling(relay, metadata_for(true));
    RawEnd accepting(relay, metadata_for(false));
    ASSERT_TRUE(dialling.joined() && accepting.joined());
    auto& errs = dialling_errs ? dialling : accepting;
    auto& other = dialling_errs ? accepting : dialling;
    EXPECT_TRUE(errs.write(kMaxTunnelBufferBytes));
    EXPECT_EQ(other.read(), kMaxTunnelBufferBytes);
    EXPECT_TRUE(errs.write(kMaxTunnelBufferBytes + 1));
    EXPECT_TRUE(holds(errs.reason(), "sent a buffer of 65537 bytes, the most is 65536"));
    EXPECT_TRUE(holds(other.reason(), "sent a buffer of 65537 bytes, the most is 65536"));
  }
}

TEST(TunnelService, AnEndThatStopsWithoutAWordEndsTheOther) {
  RelayServer relay;
  RawEnd dialling(relay, metadata_for(true));
  RawEnd accepting(relay, metadata_for(false));
  ASSERT_TRUE(dialling.joined() && accepting.joined());
  dialling.half_close();
  EXPECT_TRUE(holds(accepting.reason(), "the dialling end of the tunnel of boundary 0, epoch 1 is gone"));
}

// It reads nothing and lives on: the reason cannot reach it, the end must.
TEST(TunnelService, AnEndThatTakesNothingIsCutOffWhenTheOtherIsGone) {
  constexpr int kStoppedForMs = 100;
  RelayServer relay;
  auto dialling = std::make_unique<RawEnd>(relay, metadata_for(true));
  RawEnd accepting(relay, metadata_for(false));
  ASSERT_TRUE(dialling->joined() && accepting.joined());
  std::atomic<int> written = 0;
  std::thread writer([&] {
    while (dialling->write(kMaxTunnelBufferBytes)) ++written;
  });
  int seen = 0;
  do {
    seen = written;
    ::poll(nullptr, 0, kStoppedForMs);  // until nothing moves any more
  } while (seen == 0 || written != seen);
  dialling->cancel();
  writer.join();
  while (accepting.write(kMaxTunnelBufferBytes)) continue;
}

TEST(TunnelService, TheCallsEndWellWhenBothWaysHaveEnded) {
  RelayServer relay;
  RawEnd dialling(relay, metadata_for(true));
  RawEnd accepting(relay, metadata_for(false));
  EXPECT_TRUE(dialling.write(0));
  EXPECT_EQ(accepting.read(), 0u);
  EXPECT_TRUE(accepting.write(5));
  EXPECT_EQ(dialling.read(), 5u);
  EXPECT_TRUE(accepting.write(0));
  EXPECT_EQ(dialling.read(), 0u);
  EXPECT_EQ(dialling.reason().message, "");
  EXPECT_EQ(accepting.reason().message, "");
}

TEST(TunnelService, AnEndThatLeavesWhileItWaitsIsForgotten) {
  RelayServer relay;
  {
    // Once one of two has been replaced, the other is known to wait there.
    std::stop_source stop;
    std::future<OpenedTunnel> both[] = {open_later(relay, tunnel_hello(true), "", stop.get_token()),
                                        open_later(relay, tunnel_hello(true), "", stop.get_token())};
    const auto ready = [&](int which) {
      return both[which].wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    while (!ready(0) && !ready(1)) std::this_thread::yield();
    stop.request_stop();
    for (auto& one : both) EXPECT_FALSE(one.get().ok());
  }
  RawEnd dialling(relay, metadata_for(true));
  RawEnd accepting(relay, metadata_for(false));
  EXPECT_TRUE(dialling.joined());
  EXPECT_TRUE(accepting.joined());
}

// Which of two comes first is not known here; one of them is replaced.
TEST(TunnelService, ANewerEndTakesThePlaceOfOneThatWaits) {
  RelayServer relay;
  std::future<OpenedTunnel> both[] = {open_later(relay, tunnel_hello(true)), open_later(relay, tunnel_hello(true))};
  const auto ready = [&](int which) {
    return both[which].wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  while (!ready(0) && !ready(1)) std::this_thread::yield();
  const int replaced = ready(0) ? 0 : 1;
  const auto old = both[replaced].get();
  ASSERT_FALSE(old.ok());
  EXPECT_TRUE(holds(old.error(), "a newer dialling end of the tunnel of boundary 0 took its place"));
  const auto listener = LocalSocket::listen().take();
  const auto accepting = Tunnel::open(relay.channel(), tunnel_hello(false), {.accepts_at = listener.address()});
  EXPECT_TRUE(accepting.ok());
  EXPECT_TRUE(both[1 - replaced].get().ok());
}

// An end that comes again has lost its first call, though the relay may not know yet.
TEST(TunnelService, AnEndThatComesAgainEndsTheTunnelItWasIn) {
  RelayServer relay;
  RawEnd dialling(relay, metadata_for(true));
  RawEnd accepting(relay, metadata_for(false));
  ASSERT_TRUE(dialling.joined() && accepting.joined());
  RawEnd again(relay, metadata_for(false));
  EXPECT_TRUE(holds(dialling.reason(), "a newer accepting end of the tunnel of boundary 0 took its place"));
  EXPECT_TRUE(holds(accepting.reason(), "a newer accepting end of the tunnel of boundary 0 took its place"));
  RawEnd dialling_again(relay, metadata_for(true));
  EXPECT_TRUE(dialling_again.joined());
  EXPECT_TRUE(again.joined());
}

TEST(TunnelService, DropsWhatIsOfEarlierEpochs) {
  RelayServer relay;
  const auto end = [&](const std::string& epoch, bool dials) {
    auto metadata = metadata_for(dials);
    metadata[2].second = epoch;
    return std::make_unique<RawEnd>(relay, metadata);
  };
  const auto old = end("1", true), old_partner = end("1", false);
  const auto now = end("2", true), now_partner = end("2", false);
  for (const auto* each : {&old, &old_partner, &now, &now_partner}) ASSERT_TRUE((*each)->joined());
  relay.service().drop(2);
  EXPECT_TRUE(holds(old->reason(), "epoch 2 has begun"));
  EXPECT_TRUE(holds(old_partner->reason(), "epoch 2 has begun"));
  EXPECT_TRUE(now->write(3));
  EXPECT_EQ(now_partner->read(), 3u);
}

// Calls on one connection and one queue: a thread and a connection each would be a test of the machine.
class ManyEnds {
 public:
  ManyEnds(const RelayServer& relay, size_t count) : stub_(relay.channel()), calls_(count) {
    for (size_t number = 0; number < count; ++number) {
      auto& call = calls_[number];
      auto metadata = metadata_for(true);
      metadata[1].second = std::to_string(number);
      for (const auto& [key, value] : metadata) call.context.AddMetadata(key, value);
      call.context.set_wait_for_ready(true);
      call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));  // a failure, not a hang
      call.stream = stub_.PrepareCall(&call.context, kTunnelMethod, &queue_);
      call.stream->StartCall(&call);
    }
  }

  // Waits for the next of them to end.
  std::string next_reason() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      auto& call = *static_cast<Call*>(tag);
      if (call.started) return call.status.error_message();
      call.started = true;
      call.stream->Finish(&call.status, &call);
    }
    return "no end is left";
  }

 private:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status status;
    bool started = false;
  };
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::vector<Call> calls_;
};

TEST(TunnelService, RefusesMoreThanSoManyThatWait) {
  // Nobody may give up while the others still come, however slow the machine.
  RelayServer relay(let_through, std::chrono::hours(1));
  ManyEnds ends(relay, TunnelService::kMaxWaiting + 1);
  EXPECT_EQ(ends.next_reason(), "64 ends of tunnels wait already");
  relay.service().shutdown("the coordinator goes home");
  for (size_t i = 0; i < TunnelService::kMaxWaiting; ++i) EXPECT_EQ(ends.next_reason(), "the coordinator goes home");
}

}  // namespace
}  // namespace thinpipe
