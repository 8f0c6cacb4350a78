// The accepting side: which stream a worker gets, who is turned away, and how everything ends.
#include "net/link_service.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "net/grpc_links.h"
#include "net/link_conformance.h"
#include "net/stream_link.h"

namespace thinpipe {
namespace {

constexpr LinkLimits kLimits{4, 4, kMaxMessageBytes};

std::unique_ptr<Link> dial(const LinkServer& server, const LinkHello& hello) {
  return dial_link(address_of(server), hello, kLimits, kDialTimeout).take();
}

// Which of them are two ends of one link.
void expect_connected(Link& upper, Link& lower, uint64_t seed) {
  EXPECT_EQ(send_many(upper, seed, 1), 1u);
  EXPECT_EQ(receive_many(lower, seed, 1), 1u);
}

TEST(LinkService, GivesEachBoundaryItsOwnStream) {
  const auto server = start_server();
  const auto upper_five = dial(*server, hello_for(5));
  const auto upper_six = dial(*server, hello_for(6));
  const auto lower_six = server->service().wait_for(6, 1, "", kLimits).take();
  const auto lower_five = server->service().wait_for(5, 1, "", kLimits).take();
  expect_connected(*upper_five, *lower_five, 5);
  expect_connected(*upper_six, *lower_six, 6);
}

TEST(LinkService, AWorkerMayWaitBeforeTheDiallerComes) {
  const auto server = start_server();
  std::unique_ptr<Link> lower;
  std::thread worker([&] { lower = server->service().wait_for(0, 1, "", kLimits).take(); });
  const auto upper = dial(*server, hello_for(0));
  worker.join();
  expect_connected(*upper, *lower, 1);
}

TEST(LinkService, ADiallerMaySendBeforeTheWorkerTakesTheStream) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_for(0));
  EXPECT_EQ(send_many(*upper, 1, 4), 4u);
  const auto lower = server->service().wait_for(0, 1, "", kLimits).take();
  EXPECT_EQ(receive_many(*lower, 1, 4), 4u);
}

TEST(LinkService, ANewerStreamTakesThePlaceOfOneThatWaits) {
  const auto server = start_server();
  const auto old = dial(*server, hello_for(0));
  auto newer = dial(*server, hello_for(0));
  EXPECT_TRUE(fails_with(old->receive(), "a newer stream for boundary 0 took its place"));
  const auto lower = server->service().wait_for(0, 1, "", kLimits).take();
  expect_connected(*newer, *lower, 1);
}

TEST(LinkService, AStreamOfAnEpochThatIsOverIsClosed) {
  const auto server = start_server();
  const auto old = dial(*server, hello_for(0, 1));
  std::unique_ptr<Link> lower;
  std::thread worker([&] { lower = server->service().wait_for(0, 2, "", kLimits).take(); });
  EXPECT_TRUE(fails_with(old->receive(), "boundary 0 is at epoch 2 now, not 1"));
  const auto upper = dial(*server, hello_for(0, 2));
  worker.join();
  expect_connected(*upper, *lower, 1);
}

TEST(LinkService, AStreamOfALaterEpochWaitsForIts) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_for(0, 2));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(server->service().wait_for(0, 1, "", kLimits, stop.get_token()).ok());
  const auto error = dial_link(address_of(*server), hello_for(0, 1), kLimits, kDialTimeout);
  ASSERT_FALSE(error.ok());
  EXPECT_TRUE(holds(error.error(), "boundary 0 is at epoch 2 already, not 1"));
  const auto lower = server->service().wait_for(0, 2, "", kLimits).take();
  expect_connected(*upper, *lower, 1);
}

LinkHello hello_of(const std::string& peer, int64_t boundary = 0, uint64_t epoch = 1) {
  return {"a run", peer, boundary, epoch};
}

TEST(LinkService, AnotherPeersStreamDoesNotDisplaceTheOneToTake) {
  std::promise<std::string> refused;
  const auto server =
      LinkServer::start({"127.0.0.1:0"}, kMaxMessageBytes, let_in, nullptr, [&](const std::string& why) {
        refused.set_value(why);
      }).take();
  const auto upper = dial(*server, hello_of("ann"));
  const auto other = dial(*server, hello_of("bob"));
  const auto elsewhere = dial(*server, hello_of("bob", 1));
  const auto later = dial(*server, hello_of("cid", 0, 2));
  const auto lower = server->service().wait_for(0, 1, "ann", kLimits).take();
  const std::string why = "boundary 0 of epoch 1 belongs to ann, not to bob";
  EXPECT_TRUE(fails_with(other->receive(), why));
  EXPECT_EQ(refused.get_future().get(), why);
  expect_connected(*upper, *lower, 1);
  expect_connected(*elsewhere, *server->service().wait_for(1, 1, "bob", kLimits).take(), 2);
  expect_connected(*later, *server->service().wait_for(0, 2, "cid", kLimits).take(), 3);
}

TEST(LinkService, AnotherPeersStreamIsRefusedWhileAWorkerWaits) {
  const auto server = start_server();
  std::unique_ptr<Link> lower;
  std::thread worker([&] { lower = server->service().wait_for(0, 1, "ann", kLimits).take(); });
  const auto other = dial(*server, hello_of("bob"));
  EXPECT_TRUE(fails_with(other->receive(), "belongs to ann, not to bob"));
  const auto upper = dial(*server, hello_of("ann"));
  worker.join();
  expect_connected(*upper, *lower, 1);
}

TEST(LinkService, WhoeverFloodsItDropsStreamsOfItsOwn) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_of("ann"));
  std::vector<std::unique_ptr<Link>> flood;
  for (size_t number = 0; number < LinkService::kMaxWaiting + 3; ++number) {
    flood.push_back(dial(*server, hello_of("bob", static_cast<int64_t>(number))));
  }
  for (size_t number = 0; number < 4; ++number) {
    EXPECT_TRUE(fails_with(flood[number]->receive(), "more than 16 streams wait"));
  }
  const auto lower = server->service().wait_for(0, 1, "ann", kLimits).take();
  expect_connected(*upper, *lower, 1);
  expect_connected(*flood[4], *server->service().wait_for(4, 1, "bob", kLimits).take(), 2);
  server->shutdown("all has been seen");
}

TEST(LinkService, AWaitEndsWhenItIsToldTo) {
  const auto server = start_server();
  std::stop_source stop;
  std::latch waiting(1);
  std::thread worker([&] {
    waiting.count_down();
    const auto link = server->service().wait_for(3, 1, "", kLimits, stop.get_token());
    ASSERT_FALSE(link.ok());
    EXPECT_TRUE(holds(link.error(), "no longer waiting for the link of boundary 3"));
  });
  waiting.wait();
  stop.request_stop();
  worker.join();
}

TEST(LinkService, AShutdownClosesEverythingWithItsReason) {
  const auto server = start_server();
  const auto taken_upper = dial(*server, hello_for(0));
  const auto taken_lower = server->service().wait_for(0, 1, "", kLimits).take();
  const auto waits = dial(*server, hello_for(1));
  std::latch waiting(1);
  std::thread worker([&] {
    waiting.count_down();
    const auto link = server->service().wait_for(2, 1, "", kLimits);
    ASSERT_FALSE(link.ok());
    EXPECT_TRUE(holds(link.error(), "this worker goes home"));
  });
  waiting.wait();
  server->service().shutdown("this worker goes home");  // without the server's limit of time
  worker.join();
  EXPECT_TRUE(fails_with(taken_upper->receive(), "this worker goes home"));
  EXPECT_TRUE(fails_with(taken_lower->receive(), "this worker goes home"));
  EXPECT_TRUE(fails_with(waits->receive(), "this worker goes home"));
  EXPECT_FALSE(server->service().wait_for(1, 1, "", kLimits).ok());
}

// Nobody takes what the server's end has queued: more than flow control lets through.
TEST(LinkService, AShutdownDoesNotWaitForAPeerThatTakesNothing) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_for(0));
  const auto lower = server->service().wait_for(0, 1, "", kLimits).take();
  for (int number = 0; number < 6; ++number) ASSERT_TRUE(lower->send(MessageBytes(kMaxMessageBytes)).ok());
  server->shutdown("this worker goes home");
  EXPECT_TRUE(fails_with(lower->receive(), "this worker goes home"));
}

TEST(LinkService, ALinkMayOutliveItsServer) {
  auto server = start_server();
  const auto upper = dial(*server, hello_for(0));
  const auto lower = server->service().wait_for(0, 1, "", kLimits).take();
  server.reset();
  EXPECT_TRUE(fails_with(lower->receive(), "the other end's server is gone"));
  EXPECT_FALSE(lower->send(MessageBytes(8)).ok());
}

// A client that speaks gRPC, and otherwise says what it likes.
class RawClient {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  RawClient(const LinkServer& server, const Metadata& metadata)
      : channel_(grpc::CreateChannel(address_of(server), grpc::InsecureChannelCredentials())),
        method_(kExchangeMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel_) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    context_.set_wait_for_ready(true);
    stream_.reset(grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
        channel_.get(), method_, &context_));
  }

  bool write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return stream_->Write(grpc::ByteBuffer(&slice, 1));
  }
  void half_close() { stream_->WritesDone(); }
  std::string refusal() { return stream_->Finish().error_message(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::internal::RpcMethod method_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
};

const RawClient::Metadata kGoodMetadata{
    {kRunKey, "a run"}, {kPeerKey, "someone"}, {kBoundaryKey, "0"}, {kEpochKey, "1"}};

TEST(LinkService, RefusesAStreamThatDoesNotSayWhoItIs) {
  const auto server = start_server();
  for (size_t missing = 0; missing < kGoodMetadata.size(); ++missing) {
    auto metadata = kGoodMetadata;
    metadata.erase(metadata.begin() + static_cast<std::ptrdiff_t>(missing));
    EXPECT_TRUE(holds({RawClient(*server, metadata).refusal()}, kGoodMetadata[missing].first));
    metadata = kGoodMetadata;
    metadata.push_back(metadata[missing]);
    EXPECT_TRUE(holds({RawClient(*server, metadata).refusal()}, kGoodMetadata[missing].first));
  }
  for (const auto& [key, at] : {std::pair(kBoundaryKey, 2), std::pair(kEpochKey, 3)}) {
    for (const std::string number : {"", "x", "1x", "1 ", "99999999999999999999999", "0.5"}) {
      auto metadata = kGoodMetadata;
      metadata[static_cast<size_t>(at)].second = number;
      EXPECT_TRUE(holds({RawClient(*server, metadata).refusal()}, key)) << number;
    }
  }
}

TEST(LinkService, ClosesALinkWhosePeerBreaksTheProtocol) {
  const auto server = start_server();
  const std::pair<std::string, std::string> cases[] = {
      {"", "someone sent a buffer without a kind"},
      {"\x02more", "someone sent a buffer of kind 2, which is none"},
      {"\xff", "someone sent a buffer of kind 255, which is none"},
  };
  for (const auto& [bytes, reason] : cases) {
    RawClient client(*server, kGoodMetadata);
    const auto link = server->service().wait_for(0, 1, "", kLimits).take();
    EXPECT_TRUE(client.write(bytes));
    EXPECT_TRUE(fails_with(link->receive(), reason));
    client.half_close();
  }
}

// It lives on and reads nothing, so that nothing else would end the send().
TEST(LinkService, ADiallerThatStopsWithoutAWordWakesASender) {
  const auto server = start_server();
  RawClient client(*server, kGoodMetadata);
  const auto link = server->service().wait_for(0, 1, "", {1, 1, kMaxMessageBytes}).take();
  std::atomic<int> sent = 0;
  std::thread sender([&] {
    while (link->send(MessageBytes(kMaxMessageBytes)).ok()) ++sent;
  });
  while (sent < 2) std::this_thread::yield();  // one is being written, one queued
  client.half_close();
  sender.join();
}

TEST(LinkService, ADiallerThatStopsWithoutAWordIsLost) {
  const auto server = start_server();
  RawClient client(*server, kGoodMetadata);
  const auto link = server->service().wait_for(0, 1, "", kLimits).take();
  ASSERT_TRUE(client.write(std::string("\0abc", 4)));
  client.half_close();
  EXPECT_EQ(link->receive().value().size(), 3u);
  EXPECT_TRUE(fails_with(link->receive(), "connection to someone lost"));
}

}  // namespace
}  // namespace thinpipe
