// The accepting side: which stream a worker gets, who is refused, and how everything ends.
#include "net/link_service.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <thread>

#include "net/grpc_links.h"
#include "net/packet_links.h"
#include "net/raw_call.h"

namespace thinpipe {
namespace {

std::unique_ptr<PacketLink> packets_of(std::unique_ptr<Link> link) {
  auto packets = std::make_unique<PacketLink>(std::move(link), numbered_rules(), kEpoch);
  packets->enter(kEpoch, kStep);
  return packets;
}

std::unique_ptr<PacketLink> dial(const LinkServer& server, const wire::Hello& hello) {
  return packets_of(dial_link(address_of(server), hello, kMaxPayloadBytes, kDialTimeout).take());
}

std::unique_ptr<PacketLink> take(LinkServer& server, int64_t boundary, uint64_t epoch = 1,
                                 const std::string& from_peer = "") {
  return packets_of(server.service().wait_for(boundary, epoch, from_peer).take());
}

::testing::AssertionResult closed_with(PacketLink& link, std::string_view reason) {
  return fails_with(link.receive(numbered(0), 0), reason);
}

// They are the two ends of one link.
void expect_connected(PacketLink& upper, PacketLink& lower, uint64_t seed) {
  EXPECT_EQ(send_many(upper, seed, 1), 1u);
  EXPECT_EQ(receive_many(lower, seed, 1), 1u);
}

TEST(LinkService, GivesEachBoundaryItsOwnStream) {
  const auto server = start_server();
  const auto upper_five = dial(*server, hello_for(5));
  const auto upper_six = dial(*server, hello_for(6));
  const auto lower_six = take(*server, 6, 1);
  const auto lower_five = take(*server, 5, 1);
  expect_connected(*upper_five, *lower_five, 5);
  expect_connected(*upper_six, *lower_six, 6);
}

TEST(LinkService, AWorkerMayWaitBeforeTheDiallerComes) {
  const auto server = start_server();
  std::unique_ptr<PacketLink> lower;
  std::thread worker([&] { lower = take(*server, 0, 1); });
  const auto upper = dial(*server, hello_for(0));
  worker.join();
  expect_connected(*upper, *lower, 1);
}

TEST(LinkService, ADiallerMaySendBeforeTheWorkerTakesTheStream) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_for(0));
  EXPECT_EQ(send_many(*upper, 1, 4), 4u);
  const auto lower = take(*server, 0, 1);
  EXPECT_EQ(receive_many(*lower, 1, 4), 4u);
}

TEST(LinkService, ANewerStreamTakesThePlaceOfOneThatWaits) {
  const auto server = start_server();
  const auto old = dial(*server, hello_for(0));
  auto newer = dial(*server, hello_for(0));
  EXPECT_TRUE(closed_with(*old, "a newer stream for boundary 0 took its place"));
  const auto lower = take(*server, 0, 1);
  expect_connected(*newer, *lower, 1);
}

TEST(LinkService, StreamOfAPastEpoch_IsClosed) {
  const auto server = start_server();
  const auto old = dial(*server, hello_for(0, 1));
  std::unique_ptr<PacketLink> lower;
  std::thread worker([&] { lower = take(*server, 0, 2); });
  EXPECT_TRUE(closed_with(*old, "boundary 0 is at epoch 2 now, not 1"));
  const auto upper = dial(*server, hello_for(0, 2));
  worker.join();
  expect_connected(*upper, *lower, 1);
}

TEST(LinkService, StreamOfALaterEpoch_WaitsForThatEpoch) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_for(0, 2));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(server->service().wait_for(0, 1, "", stop.get_token()).ok());
  const auto error = dial_link(address_of(*server), hello_for(0, 1), kMaxPayloadBytes, kDialTimeout);
  ASSERT_FALSE(error.ok());
  EXPECT_TRUE(holds(error.error(), "boundary 0 is at epoch 2 already, not 1"));
  const auto lower = take(*server, 0, 2);
  expect_connected(*upper, *lower, 1);
}

wire::Hello hello_of(const std::string& peer, int64_t boundary = 0, uint64_t epoch = 1) {
  return link_hello("a run", peer, boundary, epoch);
}

TEST(LinkService, AnotherPeersStream_DoesNotReplaceTheExpectedOne) {
  std::promise<std::string> refused;
  const auto server =
      LinkServer::start({"127.0.0.1:0"}, kMaxPayloadBytes, let_in, nullptr, [&](const std::string& why) {
        refused.set_value(why);
      }).take();
  const auto upper = dial(*server, hello_of("ann"));
  const auto other = dial(*server, hello_of("bob"));
  const auto elsewhere = dial(*server, hello_of("bob", 1));
  const auto later = dial(*server, hello_of("cid", 0, 2));
  const auto lower = take(*server, 0, 1, "ann");
  const std::string why = "boundary 0 of epoch 1 belongs to ann, not to bob";
  EXPECT_TRUE(closed_with(*other, why));
  EXPECT_EQ(refused.get_future().get(), why);
  expect_connected(*upper, *lower, 1);
  expect_connected(*elsewhere, *take(*server, 1, 1, "bob"), 2);
  expect_connected(*later, *take(*server, 0, 2, "cid"), 3);
}

TEST(LinkService, AnotherPeersStreamIsRefusedWhileAWorkerWaits) {
  const auto server = start_server();
  std::unique_ptr<PacketLink> lower;
  std::thread worker([&] { lower = take(*server, 0, 1, "ann"); });
  const auto other = dial(*server, hello_of("bob"));
  EXPECT_TRUE(closed_with(*other, "belongs to ann, not to bob"));
  const auto upper = dial(*server, hello_of("ann"));
  worker.join();
  expect_connected(*upper, *lower, 1);
}

TEST(LinkService, FloodingPeer_LosesItsOwnStreams) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_of("ann"));
  std::vector<std::unique_ptr<PacketLink>> flood;
  for (size_t number = 0; number < LinkService::kMaxWaiting + 3; ++number) {
    flood.push_back(dial(*server, hello_of("bob", static_cast<int64_t>(number))));
  }
  for (size_t number = 0; number < 4; ++number) {
    EXPECT_TRUE(closed_with(*flood[number], "more than 16 streams wait"));
  }
  const auto lower = take(*server, 0, 1, "ann");
  expect_connected(*upper, *lower, 1);
  expect_connected(*flood[4], *take(*server, 4, 1, "bob"), 2);
  server->shutdown("all has been seen");
}

TEST(LinkService, StopRequest_EndsTheWait) {
  const auto server = start_server();
  std::stop_source stop;
  std::latch waiting(1);
  std::thread worker([&] {
    waiting.count_down();
    const auto link = server->service().wait_for(3, 1, "", stop.get_token());
    ASSERT_FALSE(link.ok());
    EXPECT_TRUE(holds(link.error(), "no longer waiting for the link of boundary 3"));
  });
  waiting.wait();
  stop.request_stop();
  worker.join();
}

TEST(LinkService, Shutdown_ClosesWaitingStreamsWithItsReasonAndAbortsTheRest) {
  const auto server = start_server();
  const auto taken_upper = dial(*server, hello_for(0));
  const auto taken_lower = take(*server, 0);
  const auto waits = dial(*server, hello_for(1));
  std::latch waiting(1);
  std::thread worker([&] {
    waiting.count_down();
    const auto link = server->service().wait_for(2, 1, "");
    ASSERT_FALSE(link.ok());
    EXPECT_TRUE(holds(link.error(), "this worker goes home"));
  });
  waiting.wait();
  server->service().shutdown("this worker goes home");  // without the server's timeout
  worker.join();
  EXPECT_TRUE(closed_with(*waits, "this worker goes home"));
  EXPECT_FALSE(server->service().wait_for(1, 1, "").ok());
  server->shutdown("");
  EXPECT_TRUE(closed_with(*taken_lower, "connection to a peer lost: "));
  EXPECT_TRUE(closed_with(*taken_upper, "lost: "));
  EXPECT_FALSE(taken_lower->send(numbered(0), MessageBytes(8), 0).ok());  // it may outlive the server
}

// The reason a link was closed with is still sent.
TEST(LinkService, Shutdown_StillSendsLastWords) {
  auto server = start_server();
  const auto upper = dial(*server, hello_for(0));
  const auto lower = take(*server, 0);
  lower->close("enough for today");
  server.reset();
  EXPECT_TRUE(closed_with(*upper, "enough for today"));
}

// ---- hostile diallers ----

TEST(LinkService, RefusesAStreamThatDoesNotBeginWithAHello) {
  const auto server = start_server([](const wire::Hello&, const Caller&) {
    ADD_FAILURE() << "the gate was asked";
    return Status{};
  });
  wire::Frame accepted;
  accepted.mutable_accepted();
  for (const auto& frame : {wire::Frame(), accepted, frame_of(forward(1, 1, 0)), last_word_frame("over")}) {
    RawCall call(plain_channel(address_of(*server)), RawCall::To::kLinks);
    EXPECT_TRUE(call.write(frame));
    EXPECT_TRUE(holds(call.reason(), "the stream's first frame is not a hello"));
  }
  RawCall silent(plain_channel(address_of(*server)), RawCall::To::kLinks);
  silent.half_close();
  EXPECT_TRUE(holds(silent.reason(), "the stream's first frame is not a hello"));
}

// On a separate server with a short timeout.
TEST(LinkService, CutsOffAStreamThatSaysNothing) {
  prepare_grpc();
  LinkService service(let_in, nullptr, std::chrono::milliseconds(20));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  RawCall call(plain_channel(fmt::format("127.0.0.1:{}", port)), RawCall::To::kLinks);
  (void)call.reason();  // comes
  server->Shutdown();
}

TEST(LinkService, FloodOfSilentStreams_CutsOffNoOtherStream) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_of("ann"));
  const auto channel = plain_channel(address_of(*server));
  std::vector<std::unique_ptr<RawCall>> flood;
  for (size_t number = 0; number < LinkService::kMaxWaiting + 3; ++number) {
    flood.push_back(std::make_unique<RawCall>(channel, RawCall::To::kLinks));
  }
  // Some are cut off; which ones depends on the order of arrival.
  std::atomic<size_t> cut_off = 0;
  std::vector<std::thread> waiting;
  for (auto& call : flood) {
    waiting.emplace_back([&] {
      (void)call->reason();
      ++cut_off;
    });
  }
  while (cut_off < 4) std::this_thread::yield();
  expect_connected(*upper, *take(*server, 0, 1, "ann"), 1);
  for (auto& call : flood) call->cancel();
  for (auto& thread : waiting) thread.join();
}

TEST(LinkService, ClosesALinkWhosePeerBreaksTheProtocol) {
  const auto server = start_server();
  for (const auto& frame : {wire::Frame(), hello_frame(hello_for(0))}) {
    RawCall call(plain_channel(address_of(*server)), RawCall::To::kLinks);
    ASSERT_TRUE(call.write(hello_frame(hello_for(0))) && call.accepted());
    const auto link = take(*server, 0);
    EXPECT_TRUE(call.write(frame));
    EXPECT_TRUE(closed_with(*link, fmt::format("refused a frame of kind {}", static_cast<int>(frame.what_case()))));
    EXPECT_TRUE(holds({call.read().last_word()}, "boundary 0: refused a frame of kind"));
  }
}

// The dialler stays alive and reads nothing, so nothing else ends send().
TEST(LinkService, DiallerThatStopsSilently_WakesASender) {
  const auto server = start_server();
  RawCall call(plain_channel(address_of(*server)), RawCall::To::kLinks);
  ASSERT_TRUE(call.write(hello_frame(hello_for(0))) && call.accepted());
  const auto link = take(*server, 0);
  ASSERT_TRUE(call.write(packet_frame(numbered(0), MessageBytes(3), 0)));
  EXPECT_EQ(link->receive(numbered(0), 0).value().size(), 3u);
  std::atomic<int> sent = 0;
  Status last;
  std::thread sender([&] {
    for (; last.ok(); ++sent) last = link->send(numbered(0), MessageBytes(kMaxPayloadBytes), 0);
  });
  while (sent < 2) std::this_thread::yield();
  call.half_close();
  sender.join();
  EXPECT_TRUE(fails_with(last, "connection to a peer lost"));
}

}  // namespace
}  // namespace thinpipe
