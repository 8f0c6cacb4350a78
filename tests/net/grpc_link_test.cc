// Links between processes: the common suite over a real server on loopback, who is let in, and what happens when the
// other end dies, hangs or breaks the protocol.
#include "net/grpc_link.h"

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>

#include "net/addresses.h"
#include "net/destroyed_soon.h"
#include "net/grpc_links.h"
#include "net/link_conformance.h"
#include "net/peer_process.h"
#include "net/raw_call.h"
#include "net/transfer.h"

namespace thinpipe {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, LinkConformance, GrpcLinks);
INSTANTIATE_TYPED_TEST_SUITE_P(ShapedGrpc, LinkConformance, Shaped<GrpcLinks>);

std::unique_ptr<Link> dial(const LinkServer& server, const wire::Hello& hello,
                           size_t max_payload_bytes = kMaxPayloadBytes) {
  return dial_link(address_of(server), hello, max_payload_bytes, kDialTimeout).take();
}

std::string dial_error(const std::string& address, const wire::Hello& hello, Duration timeout = kDialTimeout) {
  const auto link = dial_link(address, hello, kMaxPayloadBytes, timeout);
  return link.ok() ? "it was let in" : link.error().message;
}

std::unique_ptr<PacketLink> packets_over(std::unique_ptr<Link> link) {
  auto packets = std::make_unique<PacketLink>(std::move(link), numbered_rules(), kEpoch);
  packets->enter(kEpoch, kStep);
  return packets;
}

// A socket that listens and never answers.
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

TEST(GrpcLink, Gate_ReceivesTheDiallersHello) {
  wire::Hello heard;
  Caller from;
  const auto server = start_server([&](const wire::Hello& hello, const Caller& caller) {
    heard = hello;
    from = caller;
    return Status{};
  });
  const auto said = link_hello("a run\n\xff", std::string("p\0q", 3), -3, UINT64_MAX);
  const auto upper = dial(*server, said);
  const auto lower = server->service().wait_for(said.boundary(), said.epoch(), "").take();
  EXPECT_EQ(heard.SerializeAsString(), said.SerializeAsString());
  EXPECT_NE(from.address.find("127.0.0.1"), std::string::npos) << from.address;
  EXPECT_TRUE(from.names.empty());
}

TEST(GrpcLink, RefusedDialler_GetsTheReason) {
  const auto server = start_server(
      [](const wire::Hello&, const Caller&) { return Status(Error{"stage 7 is not of this run\nat all"}); });
  const auto error = dial_error(address_of(*server), hello_for(0));
  EXPECT_TRUE(holds({error}, address_of(*server)));
  EXPECT_TRUE(holds({error}, "stage 7 is not of this run at all"));  // and on one line
}

TEST(GrpcLink, Dial_WithoutAListener_SaysSo) {
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
  const auto server = start_server([&, until = given_up.get_future().share()](const wire::Hello&, const Caller&) {
    until.wait();
    return Status{};
  });
  const auto error = dial_error(address_of(*server), hello_for(0), std::chrono::milliseconds(50));
  given_up.set_value();
  EXPECT_EQ(error, address_of(*server) + ": no answer within 50ms");
}

TEST(GrpcLink, RefusesAPortThatIsTaken) {
  const SilentListener listener;
  const auto server = LinkServer::start({listener.address()}, kMaxPayloadBytes, let_in);
  ASSERT_FALSE(server.ok());
  EXPECT_TRUE(holds(server.error(), listener.address()));
  const auto first = start_server();
  EXPECT_FALSE(LinkServer::start({address_of(*first)}, kMaxPayloadBytes, let_in).ok());
}

TEST(GrpcLink, AKilledPeerClosesTheLinkWithAReason) {
  test::PeerProcess peer({THINPIPE_PEER_PROGRAM, "receive", "127.0.0.1:0", "1000000"});
  const auto address = "127.0.0.1:" + peer.line();
  PacketLink link(dial_link(address, link_hello("run", "peer", 0, 0), kTransferBytes, kDialTimeout).take(),
                  transfer_rules(), 0);
  std::atomic<int64_t> sent = 0;
  std::thread sender([&] {
    while (link.send(transfer_tag(sent), MessageBytes(1000), 0).ok()) ++sent;
  });
  std::thread receiver(
      [&] { EXPECT_TRUE(fails_with(link.receive(kTransferAnswer, 0), "connection to " + address + " lost: ")); });
  while (sent < 100) std::this_thread::yield();
  peer.kill();
  sender.join();
  receiver.join();
  EXPECT_TRUE(fails_with(link.send(transfer_tag(sent), {}, 0), "connection to " + address + " lost: "));
}

// The receiver's thread waits for room, the sender's for the dead stream; neither may wait forever.
TEST(GrpcLink, AKilledDiallerWakesASenderWhileArrivalsPileUp) {
  const auto server = start_server();
  test::PeerProcess peer({THINPIPE_PEER_PROGRAM, "send", address_of(*server), "1000000"});
  PacketLink link(server->service().wait_for(0, 0, "").take(), transfer_rules(), 0);
  std::atomic<int64_t> sent = 0;
  Status last;
  std::thread sender([&] {
    for (; last.ok(); ++sent) last = link.send(transfer_tag(sent), MessageBytes(kTransferBytes), 0);
  });
  while (sent < 16) std::this_thread::yield();
  peer.kill();
  sender.join();
  EXPECT_TRUE(fails_with(last, "connection to peer lost: "));
}

TEST(GrpcLink, APayloadAboveTheLimitClosesTheLinkAndSaysSo) {
  constexpr size_t kSmall = 100'000;  // above the limit of an echo
  for (const bool to_server : {true, false}) {
    const auto server = start_server(let_in, to_server ? kSmall : kMaxPayloadBytes);
    const auto upper = packets_over(dial(*server, hello_for(0), to_server ? kMaxPayloadBytes : kSmall));
    const auto lower = packets_over(server->service().wait_for(0, 1, "").take());
    const auto& from = to_server ? upper : lower;
    const auto& to = to_server ? lower : upper;
    ASSERT_TRUE(from->send(numbered(0), MessageBytes(kSmall), 0).ok());
    ASSERT_TRUE(from->send(numbered(1), MessageBytes(kSmall + kFrameOverheadBytes), 0).ok());
    ASSERT_TRUE(to->receive(numbered(0), 0).ok());
    EXPECT_TRUE(fails_with(lower->receive(numbered(1), 0), "connection to a peer lost: "));
    // The dialler always learns it from gRPC.
    EXPECT_TRUE(fails_with(upper->receive(numbered(1), 0), "larger than max"));
  }
}

// The other end must notice the excess before it holds the whole payload.
TEST(GrpcLink, AHugePayloadIsCutOffWhileItArrives) {
  constexpr size_t kHuge = size_t{160} << 20;
  for (const bool to_server : {true, false}) {
    const auto server = start_server(let_in, to_server ? 2000 : kHuge);
    const auto upper = packets_over(dial(*server, hello_for(0), to_server ? kHuge : 2000));
    const auto lower = packets_over(server->service().wait_for(0, 1, "").take());
    ASSERT_TRUE((to_server ? upper : lower)->send(numbered(0), MessageBytes(kHuge), 0).ok());
    EXPECT_FALSE((to_server ? lower : upper)->receive(numbered(0), 0).ok());
    EXPECT_LT(tcp_bytes_sent(server->ports()), kHuge * 2 / 3);
  }
}

// ---- ends that break the protocol ----

// Accepts a stream as a LinkService does, then sends these bytes instead of a frame, reads nothing and stays.
class GarbageServer {
 public:
  explicit GarbageServer(std::string bytes) : service_(std::move(bytes)) {
    prepare_grpc();
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~GarbageServer() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(const std::string& bytes) {
      wire::Frame accepted;
      accepted.mutable_accepted();
      frames_.push_back(buffer_of(accepted.SerializeAsString()));
      frames_.push_back(buffer_of(bytes));
      StartWrite(&frames_[0]);
    }
    void OnWriteDone(bool ok) override {
      if (ok && ++written_ < frames_.size()) StartWrite(&frames_[written_]);
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    static grpc::ByteBuffer buffer_of(const std::string& bytes) {
      const grpc::Slice slice(bytes);
      return grpc::ByteBuffer(&slice, 1);
    }
    std::vector<grpc::ByteBuffer> frames_;
    size_t written_ = 0;
  };
  class Service final : public grpc::CallbackGenericService {
   public:
    explicit Service(std::string bytes) : bytes_(std::move(bytes)) {}
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
      return new Reactor(bytes_);
    }

   private:
    const std::string bytes_;
  };

  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The sender waits for a server that reads nothing, the compute thread for a packet: both must wake.
TEST(GrpcLink, AServerThatSendsNoFrameIsCutOff) {
  const GarbageServer server("this is not a frame");
  const auto link = packets_over(dial_link(server.address(), hello_for(0), kMaxPayloadBytes, kDialTimeout).take());
  std::thread sender([&] {
    Status last;
    for (uint64_t number = 0; last.ok(); ++number) last = link->send(numbered(number), MessageBytes(1 << 20), 0);
    EXPECT_TRUE(fails_with(last, "lost: it sent what is not a frame"));
  });
  EXPECT_TRUE(fails_with(link->receive(numbered(0), 0), "lost: it sent what is not a frame"));
  sender.join();
}

TEST(GrpcLink, AServerThatSendsAFrameOfAnotherKindIsRefused) {
  const GarbageServer server(hello_frame(hello_for(0)).SerializeAsString());
  const auto link = packets_over(dial_link(server.address(), hello_for(0), kMaxPayloadBytes, kDialTimeout).take());
  EXPECT_TRUE(fails_with(link->receive(numbered(0), 0), "boundary 0: refused a frame of kind 1"));
}

TEST(GrpcLink, ReceivedReason_IsOneLineOfBoundedLength) {
  GrpcLinks links;
  auto [near, far] = links.make();
  const auto lower = packets_over(std::move(far));
  wire::Frame frame;
  frame.set_last_word("first\nsecond" + std::string(5000, 'x'));
  ASSERT_TRUE(near->write(std::move(frame)));
  const auto message = lower->receive(numbered(0), 0);
  ASSERT_FALSE(message.ok());
  EXPECT_TRUE(holds(message.error(), "first second"));
  EXPECT_EQ(message.error().message.size(), 1000u);
}

// ---- an end that reads nothing ----

// Sends more than flow control holds to a live end that reads nothing.
void expect_to_leave(std::unique_ptr<Link> leaving) {
  auto link = packets_over(std::move(leaving));
  for (uint64_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(link->send(numbered(number), MessageBytes(kMaxPayloadBytes), 0).ok());
  }
  EXPECT_TRUE(is_destroyed_soon(std::move(link)));
}

TEST(GrpcLink, DestroyingTheDiallersEnd_WhenTheOtherReadsNothing_DoesNotWait) {
  GrpcLinks links;
  auto [upper, lower] = links.make();
  expect_to_leave(std::move(upper));
}

TEST(GrpcLink, DestroyingTheServersEnd_WhenTheOtherReadsNothing_DoesNotWait) {
  GrpcLinks links;
  auto [upper, lower] = links.make();
  expect_to_leave(std::move(lower));
}

TEST(GrpcLink, NewServerOnAnOldPort_IsReachedAtOnce) {
  auto server = start_server();
  const auto address = address_of(*server);
  const auto old = packets_over(dial(*server, hello_for(0)));
  server.reset();
  EXPECT_FALSE(old->receive(numbered(0), 0).ok());
  server = LinkServer::start({address}, kMaxPayloadBytes, let_in).take();
  const auto upper = packets_over(dial(*server, hello_for(0)));
  const auto lower = packets_over(server->service().wait_for(0, 1, "").take());
  EXPECT_EQ(send_many(*upper, 1, 1), 1u);
  EXPECT_EQ(receive_many(*lower, 1, 1), 1u);
}

TEST(GrpcLink, WireBytes_AreLittleMoreThanThePayload) {
  constexpr int64_t kMessages = 64;
  constexpr double kPayload = kMessages * kTransferBytes;
  GrpcLinks links;
  auto [near, far] = links.make();
  PacketLink upper(std::move(near), transfer_rules(), 0), lower(std::move(far), transfer_rules(), 0);
  std::thread sender([&] { EXPECT_TRUE(send_transfer(upper, kMessages).ok()); });
  EXPECT_TRUE(receive_transfer(lower, kMessages).ok());
  sender.join();
  // Both directions of the connection: what the dialler sent and the few bytes back.
  const auto sent = static_cast<double>(tcp_bytes_sent(links.server().ports()));
  EXPECT_GE(sent, kPayload);
  EXPECT_LE(sent, 1.03 * kPayload);
  const auto other = start_server();
  EXPECT_EQ(tcp_bytes_sent(other->ports()), 0u) << "counts another server's connection";
}

}  // namespace
}  // namespace thinpipe
