// Links between processes: the common suite over a real server on loopback, who is let in and who is not, and what
// happens when the other end dies, hangs or sends what it must not.
#include "net/grpc_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>

#include "net/addresses.h"
#include "net/grpc_links.h"
#include "net/link_conformance.h"
#include "net/peer_process.h"
#include "net/transfer.h"

namespace thinpipe {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, LinkConformance, GrpcLinks);

constexpr LinkLimits kLimits{4, 4, kMaxMessageBytes};

std::unique_ptr<Link> dial(const LinkServer& server, const LinkHello& hello, const LinkLimits& limits = kLimits) {
  return dial_link(address_of(server), hello, limits, kDialTimeout).take();
}

std::string dial_error(const std::string& address, const LinkHello& hello, Duration timeout = kDialTimeout) {
  const auto link = dial_link(address, hello, kLimits, timeout);
  return link.ok() ? "it was let in" : link.error().message;
}

// A socket that listens and never says a word.
class SilentListener {
 public:
  SilentListener() {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    TP_CHECK(::bind(socket_, raw, bytes) == 0 && ::listen(socket_, 4) == 0 && ::getsockname(socket_, raw, &bytes) == 0,
             "cannot listen on loopback");
    port_ = ntohs(address.sin_port);
  }
  ~SilentListener() { ::close(socket_); }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
};

TEST(GrpcLink, TheGateHearsWhatTheDiallerSaysOfItself) {
  LinkHello heard;
  LinkCaller from;
  const auto server = start_server([&](const LinkHello& hello, const LinkCaller& caller) {
    heard = hello;
    from = caller;
    return Status{};
  });
  const LinkHello said{"a run\n\xff", std::string("p\0q", 3), -3, UINT64_MAX};
  const auto upper = dial(*server, said);
  const auto lower = server->service().wait_for(said.boundary, said.epoch, "", kLimits).take();
  EXPECT_EQ(heard, said);
  EXPECT_NE(from.address.find("127.0.0.1"), std::string::npos) << from.address;
  EXPECT_TRUE(from.names.empty());
}

TEST(GrpcLink, ARefusedDiallerIsToldWhy) {
  const auto server = start_server(
      [](const LinkHello&, const LinkCaller&) { return Status(Error{"stage 7 is not of this run\nat all"}); });
  const auto error = dial_error(address_of(*server), hello_for(0));
  EXPECT_TRUE(holds({error}, address_of(*server)));
  EXPECT_TRUE(holds({error}, "stage 7 is not of this run at all"));  // and on one line
}

TEST(GrpcLink, SaysThatNobodyListens) {
  auto server = start_server();
  const auto address = address_of(*server);
  server.reset();
  const auto error = dial_error(address, hello_for(0));
  EXPECT_TRUE(holds({error}, address));
  EXPECT_TRUE(holds({error}, "Connection refused"));
}

TEST(GrpcLink, GivesUpOnAListenerThatNeverAnswers) {
  const SilentListener listener;
  const auto error = dial_error(listener.address(), hello_for(0), std::chrono::milliseconds(20));
  EXPECT_EQ(error, listener.address() + ": no answer within 20ms");
}

TEST(GrpcLink, GivesUpOnAGateThatNeverAnswers) {
  std::promise<void> given_up;
  const auto server = start_server([&, until = given_up.get_future().share()](const LinkHello&, const LinkCaller&) {
    until.wait();
    return Status{};
  });
  const auto error = dial_error(address_of(*server), hello_for(0), std::chrono::milliseconds(50));
  given_up.set_value();
  EXPECT_EQ(error, address_of(*server) + ": no answer within 50ms");
}

TEST(GrpcLink, RefusesAPortThatIsTaken) {
  const SilentListener listener;
  const auto server = LinkServer::start({listener.address()}, kMaxMessageBytes, let_in);
  ASSERT_FALSE(server.ok());
  EXPECT_TRUE(holds(server.error(), listener.address()));
  const auto first = start_server();
  EXPECT_FALSE(LinkServer::start({address_of(*first)}, kMaxMessageBytes, let_in).ok());
}

TEST(GrpcLink, AKilledPeerClosesTheLinkWithAReason) {
  test::PeerProcess peer({THINPIPE_PEER_PROGRAM, "receive", "127.0.0.1:0", "1000000"});
  const auto address = "127.0.0.1:" + peer.line();
  const LinkLimits limits{kTransferCapacity, 1, kTransferMessageBytes};
  auto link = dial_link(address, {"run", "peer", 0, 0}, limits, kDialTimeout).take();
  std::atomic<int> sent = 0;
  std::thread sender([&] {
    while (link->send(MessageBytes(1000)).ok()) ++sent;
  });
  std::thread receiver([&] { EXPECT_TRUE(fails_with(link->receive(), "connection to " + address + " lost: ")); });
  while (sent < 100) std::this_thread::yield();
  peer.kill();
  sender.join();
  receiver.join();
  EXPECT_TRUE(fails_with(link->send(MessageBytes(8)), "connection to " + address + " lost: "));
}

TEST(GrpcLink, AKilledDiallerClosesTheLinkWithAReason) {
  const auto server = start_server();
  test::PeerProcess peer({THINPIPE_PEER_PROGRAM, "send", address_of(*server), "1000000"});
  const LinkLimits limits{kTransferCapacity, 1, kTransferMessageBytes};
  const auto link = server->service().wait_for(0, 0, "", limits).take();
  ASSERT_TRUE(link->receive().ok());
  peer.kill();
  Result<MessageBytes> last = link->receive();
  while (last.ok()) last = link->receive();
  EXPECT_TRUE(fails_with(last, "connection to peer lost: "));
}

// The receiver's thread waits for room and the sender's for the dead stream; nobody may wait for the other forever.
TEST(GrpcLink, AKilledPeerWakesASenderWhileArrivalsPileUp) {
  const auto server = start_server();
  test::PeerProcess peer({THINPIPE_PEER_PROGRAM, "send", address_of(*server), "1000000"});
  const auto link = server->service().wait_for(0, 0, "", {1, 1, kTransferMessageBytes}).take();
  std::atomic<int> sent = 0;
  std::thread sender([&] {
    while (link->send(MessageBytes(kTransferMessageBytes)).ok()) ++sent;  // the peer takes none
  });
  while (sent < 2) std::this_thread::yield();
  peer.kill();
  sender.join();
}

TEST(GrpcLink, AMessageAboveTheLimitClosesTheLinkAndSaysSo) {
  constexpr size_t kServersOwn = size_t{2} << 20;  // of those above what an echo may hold
  constexpr LinkLimits kLarge{4, 4, kServersOwn + 1};
  constexpr LinkLimits kSmall{4, 4, 2000};
  {
    const auto server = start_server();  // the link's limit below the server's
    const auto upper = dial(*server, hello_for(0), kLarge);
    const auto lower = server->service().wait_for(0, 1, "", kSmall).take();
    ASSERT_TRUE(upper->send(MessageBytes(2000)).ok());
    ASSERT_TRUE(upper->send(MessageBytes(2001)).ok());
    ASSERT_TRUE(lower->receive().ok());
    EXPECT_TRUE(fails_with(lower->receive(), "a peer sent a message of 2001 bytes, the most is 2000"));
    EXPECT_TRUE(fails_with(upper->receive(), "a peer sent a message of 2001 bytes, the most is 2000"));
  }
  {
    const auto server = start_server(let_in, kServersOwn);  // the server's own
    const auto upper = dial(*server, hello_for(0), kLarge);
    const auto lower = server->service().wait_for(0, 1, "", kLarge).take();
    ASSERT_TRUE(upper->send(MessageBytes(kServersOwn)).ok());
    ASSERT_TRUE(upper->send(MessageBytes(kServersOwn + 1)).ok());
    ASSERT_TRUE(lower->receive().ok());
    EXPECT_TRUE(fails_with(lower->receive(), "a message above the server's limit"));
    EXPECT_TRUE(fails_with(upper->receive(), "larger than max (2097154 vs. 2097153)"));
  }
  {
    const auto server = start_server();  // the dialler's
    const auto upper = dial(*server, hello_for(0), kSmall);
    const auto lower = server->service().wait_for(0, 1, "", kLarge).take();
    ASSERT_TRUE(lower->send(MessageBytes(2000)).ok());
    ASSERT_TRUE(lower->send(MessageBytes(2001)).ok());
    ASSERT_TRUE(upper->receive().ok());
    EXPECT_TRUE(fails_with(upper->receive(), "larger than max (2002 vs. 2001)"));
    EXPECT_FALSE(lower->receive().ok());
  }
}

// The other end must not have to hold it all before it sees that it is too much.
TEST(GrpcLink, AHugeMessageIsCutOffWhileItArrives) {
  constexpr size_t kHuge = size_t{160} << 20;
  for (const bool to_server : {true, false}) {
    const auto server = start_server(let_in, to_server ? 2000 : kHuge);
    const auto upper = dial(*server, hello_for(0), {1, 1, to_server ? kHuge : 2000});
    const auto lower = server->service().wait_for(0, 1, "", {1, 1, to_server ? 2000 : kHuge}).take();
    ASSERT_TRUE((to_server ? upper : lower)->send(MessageBytes(kHuge)).ok());
    EXPECT_FALSE((to_server ? lower : upper)->receive().ok());
    EXPECT_LT(tcp_bytes_sent(server->ports()), kHuge * 2 / 3);
  }
}

TEST(GrpcLink, AReasonIsOneLineOfBoundedLengthWhereItArrives) {
  GrpcLinks links;
  auto [upper, lower] = links.make(1, 1);
  upper->close("first\nsecond" + std::string(5000, 'x'));
  const auto message = lower->receive();
  ASSERT_FALSE(message.ok());
  EXPECT_TRUE(holds(message.error(), "first second"));
  EXPECT_EQ(message.error().message.size(), 1000u);
}

TEST(GrpcLink, AMessageInADirectionWithoutRoomClosesTheLink) {
  const auto server = start_server();
  const auto upper = dial(*server, hello_for(0), {1, 1, 100});
  const auto lower = server->service().wait_for(0, 1, "", {0, 1, 100}).take();
  ASSERT_TRUE(upper->send(MessageBytes(8)).ok());
  EXPECT_TRUE(fails_with(lower->receive(), "in a direction without room for any"));
  EXPECT_TRUE(fails_with(upper->receive(), "in a direction without room for any"));
}

TEST(GrpcLinkDeathTest, AMessageAboveTheLimitIsTheSendersFault) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto send_too_much = [] {
    GrpcLinks links;
    const auto ends = links.make(1, 1);
    (void)ends.first->send(MessageBytes(kMaxMessageBytes + 1)).ok();
  };
  EXPECT_DEATH(send_too_much(), "a message of 8388609 bytes on a link for at most 8388608");
}

// More than flow control and queues take, to an end that takes nothing and lives on.
void send_too_much(Link& link) {
  for (int number = 0; number < 6; ++number) ASSERT_TRUE(link.send(MessageBytes(kMaxMessageBytes)).ok());
}

TEST(GrpcLink, DestroyingTheDiallersEndDoesNotWaitForOneThatTakesNothing) {
  GrpcLinks links;
  auto [upper, lower] = links.make(2, 2);
  send_too_much(*upper);
  upper.reset();
}

TEST(GrpcLink, DestroyingTheServersEndDoesNotWaitForOneThatTakesNothing) {
  GrpcLinks links;
  auto [upper, lower] = links.make(2, 2);
  send_too_much(*lower);
  lower.reset();
}

TEST(GrpcLink, ANewServerOfAnOldPortIsReachedAtOnce) {
  auto server = start_server();
  const auto address = address_of(*server);
  auto old = dial(*server, hello_for(0));
  server.reset();
  EXPECT_FALSE(old->receive().ok());
  server = LinkServer::start({address}, kMaxMessageBytes, let_in).take();
  const auto upper = dial(*server, hello_for(0));
  const auto lower = server->service().wait_for(0, 1, "", kLimits).take();
  EXPECT_EQ(send_many(*upper, 1, 1), 1u);
  EXPECT_EQ(receive_many(*lower, 1, 1), 1u);
}

TEST(GrpcLink, LeavesLittleMoreThanThePayloadOnTheWire) {
  constexpr int64_t kMessages = 64;
  constexpr double kPayload = kMessages * kTransferMessageBytes;
  GrpcLinks links;
  auto [upper, lower] = links.make(kTransferCapacity, 1);
  std::thread sender([&from = *upper] { EXPECT_TRUE(send_transfer(from, kMessages).ok()); });
  EXPECT_TRUE(receive_transfer(*lower, kMessages).ok());
  sender.join();
  // Both ends of the one connection: what the dialler sent and the little that came back.
  const auto sent = static_cast<double>(tcp_bytes_sent(links.server().ports()));
  EXPECT_GE(sent, kPayload);
  EXPECT_LE(sent, 1.03 * kPayload);
  const auto other = start_server();
  EXPECT_EQ(tcp_bytes_sent(other->ports()), 0u) << "counts another server's connection";
}

}  // namespace
}  // namespace thinpipe
