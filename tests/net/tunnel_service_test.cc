// The relay's side: who is let in, who replaces whom, and what happens to ends that break the rules.
#include "net/tunnel_service.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "net/packet_links.h"
#include "net/raw_call.h"
#include "net/relayed_links.h"

namespace thinpipe {
namespace {

// An end that speaks gRPC and may send anything.
class RawEnd : public RawCall {
 public:
  RawEnd(const RelayServer& relay, const wire::Hello& hello) : RawEnd(relay.channel(), hello) {}
  RawEnd(const std::shared_ptr<grpc::Channel>& channel, const wire::Hello& hello) : RawCall(channel, To::kRelay) {
    EXPECT_TRUE(RawCall::write(hello_frame(hello)));
  }

  bool write(size_t bytes) {
    wire::Frame frame;
    frame.set_tunnelled(std::string(bytes, 'x'));
    return RawCall::write(frame);
  }
  size_t read() {
    const auto frame = RawCall::read();
    return frame.what_case() == wire::Frame::kTunnelled ? frame.tunnelled().size() : SIZE_MAX;
  }
};

TEST(TunnelService, Gate_ReceivesTheHelloAndItsRefusalIsForwarded) {
  wire::Hello heard;
  Caller from;
  RelayServer relay([&](const wire::Hello& hello, const Caller& caller) {
    heard = hello;
    from = caller;
    return Status(Error{"stage 7 is not of this run\nat all"});
  });
  const auto said = tunnel_hello("a run\n\xff", -3, UINT64_MAX, true);
  const auto end = Tunnel::open(relay.channel(), said);
  ASSERT_FALSE(end.ok());
  EXPECT_TRUE(holds(end.error(), "stage 7 is not of this run at all"));
  EXPECT_EQ(heard.SerializeAsString(), said.SerializeAsString());
  EXPECT_NE(from.address.find("127.0.0.1"), std::string::npos) << from.address;
  EXPECT_TRUE(from.names.empty());
}

TEST(TunnelService, RefusesAnEndThatDoesNotBeginWithAHello) {
  RelayServer relay([](const wire::Hello&, const Caller&) {
    ADD_FAILURE() << "the gate was asked";
    return Status{};
  });
  for (const auto& frame : {wire::Frame(), last_word_frame("over")}) {
    RawCall call(relay.channel(), RawCall::To::kRelay);
    EXPECT_TRUE(call.write(frame));
    EXPECT_TRUE(holds(call.reason(), "the call's first frame is not a hello"));
  }
}

TEST(TunnelService, CutsOffAnEndThatSaysNothing) {
  RelayServer relay(let_through, std::chrono::hours(1), std::chrono::milliseconds(20));
  RawCall call(relay.channel(), RawCall::To::kRelay);
  EXPECT_TRUE(holds(call.reason(), "no hello within 20ms"));
}

TEST(TunnelService, AFrameOfAnotherKindEndsBoth) {
  RelayServer relay;
  RawEnd dialling(relay, end_hello(true));
  RawEnd accepting(relay, end_hello(false));
  ASSERT_TRUE(dialling.accepted() && accepting.accepted());
  EXPECT_TRUE(dialling.RawCall::write(last_word_frame("over")));
  EXPECT_TRUE(
      holds(accepting.reason(), "the dialling end of the tunnel of boundary 0, epoch 1 sent a frame of another"));
  EXPECT_TRUE(holds(dialling.reason(), "sent a frame of another kind"));
}

TEST(TunnelService, APieceAboveTheLimitEndsBoth) {
  RelayServer relay;
  for (const bool dialling_errs : {true, false}) {
    RawEnd dialling(relay, end_hello(true));
    RawEnd accepting(relay, end_hello(false));
    ASSERT_TRUE(dialling.accepted() && accepting.accepted());
    auto& errs = dialling_errs ? dialling : accepting;
    auto& other = dialling_errs ? accepting : dialling;
    EXPECT_TRUE(errs.write(kMaxTunnelBytes));
    EXPECT_EQ(other.read(), kMaxTunnelBytes);
    EXPECT_TRUE(errs.write(kMaxTunnelBytes + 1));
    EXPECT_TRUE(holds(errs.reason(), "sent a piece of 65537 bytes, the most is 65536"));
    EXPECT_TRUE(holds(other.reason(), "sent a piece of 65537 bytes, the most is 65536"));
  }
}

TEST(TunnelService, EndThatStopsSilently_EndsTheOther) {
  RelayServer relay;
  RawEnd dialling(relay, end_hello(true));
  RawEnd accepting(relay, end_hello(false));
  ASSERT_TRUE(dialling.accepted() && accepting.accepted());
  dialling.half_close();
  EXPECT_TRUE(holds(accepting.reason(), "the dialling end of the tunnel of boundary 0, epoch 1 is gone"));
}

// It lives and reads nothing: the call must end without its reason arriving.
TEST(TunnelService, EndThatReadsNothing_IsCutOffWhenTheOtherIsGone) {
  constexpr int kStoppedForMs = 100;
  RelayServer relay;
  auto dialling = std::make_unique<RawEnd>(relay, end_hello(true));
  RawEnd accepting(relay, end_hello(false));
  ASSERT_TRUE(dialling->accepted() && accepting.accepted());
  std::atomic<int> written = 0;
  std::thread writer([&] {
    while (dialling->write(kMaxTunnelBytes)) ++written;
  });
  int seen = 0;
  do {
    seen = written;
    ::poll(nullptr, 0, kStoppedForMs);  // until nothing moves
  } while (seen == 0 || written != seen);
  dialling->cancel();
  writer.join();
  while (accepting.write(kMaxTunnelBytes)) continue;
}

TEST(TunnelService, Calls_WhenBothDirectionsHaveEnded_EndWithoutError) {
  RelayServer relay;
  RawEnd dialling(relay, end_hello(true));
  RawEnd accepting(relay, end_hello(false));
  ASSERT_TRUE(dialling.accepted() && accepting.accepted());
  EXPECT_TRUE(dialling.write(0));
  EXPECT_EQ(accepting.read(), 0u);
  EXPECT_TRUE(accepting.write(5));
  EXPECT_EQ(dialling.read(), 5u);
  EXPECT_TRUE(accepting.write(0));
  EXPECT_EQ(dialling.read(), 0u);
  EXPECT_EQ(dialling.reason().message, "");
  EXPECT_EQ(accepting.reason().message, "");
}

TEST(TunnelService, WaitingEnd_ThatLeaves_IsForgotten) {
  RelayServer relay;
  {
    // Once one of the two is replaced, the other must be waiting.
    std::stop_source stop;
    std::future<OpenedTunnel> both[] = {open_later(relay, end_hello(true), "", stop.get_token()),
                                        open_later(relay, end_hello(true), "", stop.get_token())};
    const auto ready = [&](int which) {
      return both[which].wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    while (!ready(0) && !ready(1)) std::this_thread::yield();
    stop.request_stop();
    for (auto& one : both) EXPECT_FALSE(one.get().ok());
  }
  RawEnd dialling(relay, end_hello(true));
  RawEnd accepting(relay, end_hello(false));
  EXPECT_TRUE(dialling.accepted());
  EXPECT_TRUE(accepting.accepted());
}

// Either may come first; one of them is replaced.
TEST(TunnelService, ANewerEndTakesThePlaceOfOneThatWaits) {
  RelayServer relay;
  std::future<OpenedTunnel> both[] = {open_later(relay, end_hello(true)), open_later(relay, end_hello(true))};
  const auto ready = [&](int which) {
    return both[which].wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  while (!ready(0) && !ready(1)) std::this_thread::yield();
  const int replaced = ready(0) ? 0 : 1;
  const auto old = both[replaced].get();
  ASSERT_FALSE(old.ok());
  EXPECT_TRUE(holds(old.error(), "a newer dialling end of the tunnel of boundary 0 took its place"));
  const auto listener = LocalSocket::listen().take();
  const auto accepting = Tunnel::open(relay.channel(), end_hello(false), {.accepts_at = listener.address()});
  EXPECT_TRUE(accepting.ok());
  EXPECT_TRUE(both[1 - replaced].get().ok());
}

// An end that reconnects has lost its first call; the relay may not know that yet.
TEST(TunnelService, EndThatReconnects_EndsItsOldTunnel) {
  RelayServer relay;
  RawEnd dialling(relay, end_hello(true));
  RawEnd accepting(relay, end_hello(false));
  ASSERT_TRUE(dialling.accepted() && accepting.accepted());
  RawEnd again(relay, end_hello(false));
  EXPECT_TRUE(holds(dialling.reason(), "a newer accepting end of the tunnel of boundary 0 took its place"));
  EXPECT_TRUE(holds(accepting.reason(), "a newer accepting end of the tunnel of boundary 0 took its place"));
  RawEnd dialling_again(relay, end_hello(true));
  EXPECT_TRUE(dialling_again.accepted());
  EXPECT_TRUE(again.accepted());
}

TEST(TunnelService, DropsEndsOfEarlierEpochs) {
  RelayServer relay;
  RawEnd old(relay, end_hello(true, 0, 1)), old_partner(relay, end_hello(false, 0, 1));
  RawEnd now(relay, end_hello(true, 0, 2)), now_partner(relay, end_hello(false, 0, 2));
  for (auto* each : {&old, &old_partner, &now, &now_partner}) ASSERT_TRUE(each->accepted());
  RawCall silent(relay.channel(), RawCall::To::kRelay);
  relay.service().drop(2);
  EXPECT_TRUE(holds(old.reason(), "epoch 2 has begun"));
  EXPECT_TRUE(holds(old_partner.reason(), "epoch 2 has begun"));
  EXPECT_TRUE(now.write(3));
  EXPECT_EQ(now_partner.read(), 3u);
}

// All share one connection: one each would test the machine.
TEST(TunnelService, WaitingEnds_AboveTheLimit_AreRefused) {
  // Nobody may give up before all have come, even on a slow machine.
  RelayServer relay(let_through, std::chrono::hours(1));
  const auto channel = relay.channel();
  std::vector<std::unique_ptr<RawEnd>> ends;
  std::atomic<size_t> refused = 0;
  std::vector<std::thread> waiting;
  for (size_t number = 0; number < TunnelService::kMaxWaiting + 1; ++number) {
    ends.push_back(std::make_unique<RawEnd>(channel, end_hello(true, static_cast<int64_t>(number))));
    waiting.emplace_back([&, &end = *ends.back()] {
      const auto reason = end.reason().message;
      if (reason == "64 ends of tunnels wait already") ++refused;
      EXPECT_TRUE(refused == 1 || reason == "the coordinator goes home") << reason;
    });
  }
  while (refused == 0) std::this_thread::yield();
  relay.service().shutdown("the coordinator goes home");
  for (auto& thread : waiting) thread.join();
  EXPECT_EQ(refused, 1u);
}

// Silent strangers keep nobody out.
TEST(TunnelService, AFloodOfSilentCallsEndsTheOldestOfThem) {
  RelayServer relay(let_through, std::chrono::hours(1), std::chrono::hours(1));
  const auto channel = relay.channel();
  std::vector<std::unique_ptr<RawCall>> flood;
  std::atomic<size_t> ended = 0;
  std::vector<std::thread> waiting;
  for (size_t number = 0; number < TunnelService::kMaxOpening + 1; ++number) {
    flood.push_back(std::make_unique<RawCall>(channel, RawCall::To::kRelay));
    waiting.emplace_back([&, &call = *flood.back()] {
      if (call.reason().message == "too many calls have not said yet whose they are") ++ended;
    });
  }
  while (ended == 0) std::this_thread::yield();
  RawEnd dialling(relay, end_hello(true)), accepting(relay, end_hello(false));
  EXPECT_TRUE(dialling.accepted() && accepting.accepted());
  for (auto& call : flood) call->cancel();
  for (auto& thread : waiting) thread.join();
}

}  // namespace
}  // namespace thinpipe
