// What a relay sees of a link that passes through it: no payload with TLS between the neighbours, all bytes without it.
// The second case shows that the test would notice a leak.
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include <mutex>

#include "net/credential_cases.h"
#include "net/packet_links.h"
#include "net/path_probe.h"
#include "net/relayed_links.h"
#include "net/tls.h"

namespace thinpipe {
namespace {

const std::string kName = peer_name("lower"), kOtherName = peer_name("upper");

TEST(RelaySecrecy, TheRelaySeesPlaintextOnlyWithoutTls) {
  constexpr std::string_view kDown = "the activations of the very first stage";
  constexpr std::string_view kUp = "the gradients of the very last stage";
  const test::SomeRun run;
  for (const bool with_tls : {true, false}) {
    RelayServer relay;
    const auto server = LinkServer::start({"127.0.0.1:0"}, kMaxPayloadBytes, let_in,
                                          with_tls ? tls_server(run.member(kName), true) : nullptr)
                            .take();
    const auto ends = open_ends(relay, address_of(*server));
    const Wiretap tap(*ends.dialling);
    const auto upper = dial_link(tap.address(), hello_for(0), kMaxPayloadBytes, kDialTimeout,
                                 with_tls ? tls_channel(run.member(kOtherName)) : nullptr, with_tls ? kName : "")
                           .take();
    const auto lower = server->service().wait_for(0, 1, "").take();
    wire::Frame frame;
    ASSERT_TRUE(upper->write(packet_frame(numbered(0), bytes_of(kDown), 0)) && lower->read(frame));
    EXPECT_EQ(frame.packet().payload(), kDown);
    ASSERT_TRUE(lower->write(packet_frame(numbered(0), bytes_of(kUp), 0)) && upper->read(frame));
    EXPECT_EQ(frame.packet().payload(), kUp);
    const auto down = tap.down(), up = tap.up();
    EXPECT_GT(down.size(), kDown.size());
    EXPECT_GT(up.size(), kUp.size());
    EXPECT_EQ(down.find(kDown) != std::string::npos, !with_tls);
    EXPECT_EQ(up.find(kUp) != std::string::npos, !with_tls);
  }
}

TEST(RelaySecrecy, DialledPeer_MustProveTheExpectedName) {
  const test::SomeRun run;
  std::mutex mutex;  // the gate runs on gRPC's threads
  std::vector<std::string> identities;
  const auto gate = [&](const wire::Hello&, const Caller& caller) {
    const std::lock_guard lock(mutex);
    identities = caller.names;
    return Status{};
  };
  const auto seen = [&] {
    const std::lock_guard lock(mutex);
    return identities;
  };
  const auto server =
      LinkServer::start({"127.0.0.1:0"}, kMaxPayloadBytes, gate, tls_server(run.member(kName), true)).take();
  const auto dial = [&](const std::string& expected_name) {
    return dial_link(address_of(*server), hello_for(0), kMaxPayloadBytes, kDialTimeout,
                     tls_channel(run.member(kOtherName)), expected_name);
  };
  EXPECT_FALSE(dial(peer_name("somebody")).ok());
  EXPECT_FALSE(dial("").ok()) << "the address is not a name of its";
  EXPECT_TRUE(seen().empty());
  const auto link = dial(kName);
  EXPECT_TRUE(link.ok());
  server->shutdown("all has been seen");
  EXPECT_EQ(seen(), std::vector{kOtherName});
}

TEST(RelaySecrecy, ProbedPeer_MustProveTheExpectedName) {
  const test::SomeRun run;
  const auto server =
      LinkServer::start({"127.0.0.1:0"}, kMaxPayloadBytes, let_in, tls_server(run.member(kName), true)).take();
  const auto probe = [&](const std::string& expected_name) {
    return probe_path(address_of(*server), tls_channel(run.member(kOtherName)), expected_name, kDialTimeout);
  };
  EXPECT_FALSE(probe(peer_name("somebody")).ok());
  EXPECT_TRUE(probe(kName).ok());
  EXPECT_FALSE(probe_path(address_of(*server), nullptr, "", kDialTimeout).ok());
}

}  // namespace
}  // namespace thinpipe
