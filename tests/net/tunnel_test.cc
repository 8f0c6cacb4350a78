// Relayed paths: the common link suite over one, the bytes that pass, what stops a sender, and how an end learns that
// the other is gone.
#include "net/tunnel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

#include "net/destroyed_soon.h"
#include "net/link_conformance.h"
#include "net/peer_process.h"
#include "net/relayed_links.h"
#include "support/draw.h"

namespace thinpipe {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Relayed, LinkConformance, RelayedLinks);

// In pieces of random size.
void send_in_pieces(LocalSocket& socket, const MessageBytes& bytes, uint64_t seed) {
  const CounterRng rng(seed, "piece");
  for (size_t at = 0, piece = 0; at < bytes.size(); ++piece) {
    const size_t count = std::min<size_t>(1 + test::below(rng, 200000, piece), bytes.size() - at);
    if (!socket.send({bytes.data() + at, count})) return;
    at += count;
  }
}

MessageBytes receive_bytes(LocalSocket& socket, size_t count) {
  MessageBytes bytes(count);
  for (size_t at = 0; at < count;) {
    const auto got = socket.receive({bytes.data() + at, count - at});
    if (!got || got.value() == 0) return {};
    at += got.value();
  }
  return bytes;
}

::testing::AssertionResult at_its_end(LocalSocket& socket) {
  std::byte one;
  const auto got = socket.receive({&one, 1});
  if (got && got.value() > 0) return ::testing::AssertionFailure() << "there was a byte more";
  return ::testing::AssertionSuccess();
}

// A connection is refused or ends at once: the tunnel may not know yet that it has ended.
::testing::AssertionResult leads_nowhere(const Tunnel& dialling) {
  auto socket = LocalSocket::connect(dialling.local_address(), kDialTimeout);
  return socket ? at_its_end(socket.value()) : ::testing::AssertionSuccess();
}

void expect_connected(SocketTunnel& tunnel, uint64_t seed) {
  const auto down = test_message(seed, 0, 1000);
  const auto up = test_message(seed, 1, 1000);
  EXPECT_TRUE(tunnel.near.send(down).ok());
  EXPECT_EQ(receive_bytes(tunnel.far, down.size()), down);
  EXPECT_TRUE(tunnel.far.send(up).ok());
  EXPECT_EQ(receive_bytes(tunnel.near, up.size()), up);
}

TEST(Tunnel, PassesBytesUnchangedBothWaysAtOnce) {
  RelayServer relay;
  SocketTunnel tunnel(relay, 3);
  const auto down = test_message(1, 0, (size_t{5} << 20) + 7);
  const auto up = test_message(2, 0, (size_t{3} << 20) + 1);
  std::thread above([&] { send_in_pieces(tunnel.near, down, 1); });
  std::thread below([&] { send_in_pieces(tunnel.far, up, 2); });
  MessageBytes arrived_up;
  std::thread reader([&] { arrived_up = receive_bytes(tunnel.near, up.size()); });
  EXPECT_TRUE(receive_bytes(tunnel.far, down.size()) == down);
  for (auto* thread : {&above, &below, &reader}) thread->join();
  EXPECT_TRUE(arrived_up == up);
}

TEST(Tunnel, ClosingOneDirection_LeavesTheOtherOpen) {
  for (const bool near_first : {true, false}) {
    RelayServer relay;
    SocketTunnel tunnel(relay);
    auto& first = near_first ? tunnel.near : tunnel.far;
    auto& second = near_first ? tunnel.far : tunnel.near;
    first.end_sending();
    EXPECT_TRUE(at_its_end(second));
    const auto late = test_message(1, 0, 300000);
    std::thread sender([&] { send_in_pieces(second, late, 1); });
    EXPECT_EQ(receive_bytes(first, late.size()), late);
    sender.join();
    second.end_sending();
    EXPECT_TRUE(at_its_end(first));
  }
}

TEST(Tunnel, ReaderThatReadsNothing_StopsTheWriter) {
  constexpr size_t kMuch = size_t{1} << 30;  // more than sockets and flow control hold on any machine
  constexpr int kStoppedForMs = 300;
  RelayServer relay;
  SocketTunnel tunnel(relay);
  std::atomic<size_t> accepted = 0;
  std::thread writer([&] {
    const MessageBytes piece(1 << 16);
    while (accepted < kMuch && tunnel.near.send(piece).ok()) accepted += piece.size();
  });
  // The writer has stopped when nothing is taken for a while. No event marks this, so the test waits.
  size_t seen = 0;
  do {
    seen = accepted;
    ::poll(nullptr, 0, kStoppedForMs);
  } while (seen == 0 || accepted != seen);
  EXPECT_LT(seen, kMuch) << "nothing has stopped it";
  // It continues when the reader does.
  EXPECT_EQ(receive_bytes(tunnel.far, seen + (1 << 20)).size(), seen + (1 << 20));
  tunnel.ends.accepting.reset();
  tunnel.near.interrupt();
  writer.join();
}

TEST(Tunnel, TwoBoundariesAtOnceDoNotMix) {
  RelayServer relay;
  SocketTunnel five(relay, 5);
  SocketTunnel six(relay, 6);
  SocketTunnel six_later(relay, 6, 2);
  expect_connected(six, 1);
  expect_connected(five, 2);
  expect_connected(six_later, 3);
  expect_connected(six, 4);
}

TEST(Tunnel, TakesOneConnectionAndNoSecond) {
  RelayServer relay;
  SocketTunnel tunnel(relay);
  expect_connected(tunnel, 1);
  const auto second = LocalSocket::connect(tunnel.ends.dialling->local_address(), kDialTimeout);
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(holds(second.error(), "Connection refused"));
}

TEST(Tunnel, End_WhosePartnerNeverComes_TimesOut) {
  RelayServer relay(let_through, std::chrono::milliseconds(20));
  const auto dialling = Tunnel::open(relay.channel(), end_hello(true, 4, 7));
  ASSERT_FALSE(dialling.ok());
  EXPECT_TRUE(
      holds(dialling.error(), "the accepting end of the tunnel of boundary 4, epoch 7 did not come within 20ms"));
  const auto accepting = Tunnel::open(relay.channel(), end_hello(false, 4, 7), {.accepts_at = "127.0.0.1:1"});
  ASSERT_FALSE(accepting.ok());
  EXPECT_TRUE(holds(accepting.error(), "the dialling end of the tunnel of boundary 4, epoch 7 did not come"));
}

TEST(Tunnel, GivesUpOnARelayThatNeverAnswers) {
  RelayServer relay;
  const auto end = Tunnel::open(relay.channel(), end_hello(true), {.timeout = std::chrono::milliseconds(20)});
  ASSERT_FALSE(end.ok());
  EXPECT_TRUE(holds(end.error(), "no answer of the relay within 20ms"));
}

TEST(Tunnel, StopRequest_EndsTheWait) {
  std::latch asked(1);
  RelayServer relay([&](const wire::Hello&, const Caller&) {
    asked.count_down();
    return Status{};
  });
  std::stop_source stop;
  auto end = open_later(relay, end_hello(true), "", stop.get_token());
  asked.wait();
  stop.request_stop();
  const auto opened = end.get();
  ASSERT_FALSE(opened.ok());
  EXPECT_TRUE(holds(opened.error(), "no longer waiting for the other end"));
}

TEST(Tunnel, AnEndThatVanishesEndsTheOther) {
  for (const bool dialling_goes : {true, false}) {
    RelayServer relay;
    SocketTunnel tunnel(relay);
    expect_connected(tunnel, 1);
    auto& gone = dialling_goes ? tunnel.ends.dialling : tunnel.ends.accepting;
    gone.reset();
    EXPECT_TRUE(at_its_end(dialling_goes ? tunnel.far : tunnel.near));
  }
}

TEST(Tunnel, AnEndThatVanishesIsNoticedBeforeAnyoneConnects) {
  RelayServer relay;
  const auto listener = LocalSocket::listen().take();
  auto ends = open_ends(relay, listener.address());
  ends.accepting.reset();
  EXPECT_TRUE(leads_nowhere(*ends.dialling));
}

// The writer fills every buffer between it and an end that reads nothing.
TEST(Tunnel, AnEndThatVanishesIsNoticedWhileNothingMoves) {
  RelayServer relay;
  SocketTunnel tunnel(relay);
  std::thread writer([&] {
    while (tunnel.near.send(MessageBytes(1 << 16)).ok()) continue;
  });
  EXPECT_EQ(receive_bytes(tunnel.far, 1).size(), 1u);
  tunnel.ends.dialling.reset();
  tunnel.near.interrupt();
  writer.join();
  std::byte room[1000];
  auto got = tunnel.far.receive(room);
  while (got && got.value() > 0) got = tunnel.far.receive(room);
}

TEST(Tunnel, DestroyingAnEnd_WhenTheOtherReadsNothing_DoesNotWait) {
  RelayServer relay;
  SocketTunnel tunnel(relay);
  std::thread writer([&] {
    while (tunnel.near.send(MessageBytes(1 << 16)).ok()) continue;
  });
  EXPECT_EQ(receive_bytes(tunnel.far, 1).size(), 1u);
  EXPECT_TRUE(is_destroyed_soon(std::move(tunnel.ends.accepting)));
  EXPECT_TRUE(is_destroyed_soon(std::move(tunnel.ends.dialling)));
  tunnel.near.interrupt();
  writer.join();
}

TEST(Tunnel, AnEndWhoseProcessIsKilledEndsTheOther) {
  RelayServer relay;
  auto listener = LocalSocket::listen().take();
  test::PeerProcess peer(
      {THINPIPE_PEER_PROGRAM, "relayed", fmt::format("127.0.0.1:{}", relay.port()), listener.address()});
  const auto dialling = Tunnel::open(relay.channel(), end_hello(true)).take();
  ASSERT_EQ(peer.line(), "joined");
  auto near = LocalSocket::connect(dialling->local_address(), kDialTimeout).take();
  auto far = listener.accept().take();
  ASSERT_TRUE(far.send(MessageBytes(10)).ok());
  EXPECT_EQ(receive_bytes(near, 10).size(), 10u);
  peer.kill();
  EXPECT_TRUE(at_its_end(near));
}

TEST(Tunnel, Shutdown_EndsBothEndsAndRefusesNewOnesWithItsReason) {
  RelayServer relay;
  SocketTunnel tunnel(relay);
  expect_connected(tunnel, 1);
  relay.service().shutdown("the coordinator goes home");
  EXPECT_TRUE(at_its_end(tunnel.near));
  EXPECT_TRUE(at_its_end(tunnel.far));
  const auto late = Tunnel::open(relay.channel(), end_hello(true));
  ASSERT_FALSE(late.ok());
  EXPECT_TRUE(holds(late.error(), "the coordinator goes home"));
}

TEST(Tunnel, ARelayThatDiesEndsBothEnds) {
  RelayServer relay;
  SocketTunnel tunnel(relay);
  expect_connected(tunnel, 1);
  relay.kill();
  EXPECT_TRUE(at_its_end(tunnel.near));
  EXPECT_TRUE(at_its_end(tunnel.far));
}

TEST(Tunnel, AcceptingEnd_WithoutAServer_FailsForBoth) {
  RelayServer relay;
  std::string nobody;
  {
    const auto closed = LocalSocket::listen().take();
    nobody = closed.address();
  }
  auto accepting = open_later(relay, end_hello(false), nobody);
  const auto dialling = Tunnel::open(relay.channel(), end_hello(true)).take();
  const auto opened = accepting.get();
  ASSERT_FALSE(opened.ok());
  EXPECT_TRUE(holds(opened.error(), "cannot connect to " + nobody + ": Connection refused"));
  EXPECT_TRUE(leads_nowhere(*dialling));
}

}  // namespace
}  // namespace thinpipe
