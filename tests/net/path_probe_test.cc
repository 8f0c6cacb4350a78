// Measuring a path: echo sizes, who answers, and that the facts describe the path taken.
#include "net/path_probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "net/relayed_links.h"

namespace thinpipe {
namespace {

::testing::AssertionResult plausible(const Result<PathFacts>& facts) {
  if (!facts) return ::testing::AssertionFailure() << facts.error().message;
  for (const double fact : {facts.value().round_trip_s, facts.value().up_bits_per_s, facts.value().down_bits_per_s}) {
    if (!std::isfinite(fact) || fact <= 0) return ::testing::AssertionFailure() << fact;
  }
  return ::testing::AssertionSuccess();
}

TEST(Echo, AnswersWithTheBytesAskedForAndRefusesTooMuch) {
  const auto server = start_server(let_in, 100);  // small link payloads do not limit the echo
  const auto stub = wire::Links::NewStub(plain_channel(address_of(*server)));
  const auto echo = [&](uint32_t answer_bytes, size_t payload_bytes, wire::EchoReply& reply) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    wire::EchoRequest request;
    request.set_answer_bytes(answer_bytes);
    request.mutable_payload()->resize(payload_bytes);
    return stub->Echo(&context, request, &reply).error_message();
  };
  wire::EchoReply reply;
  for (const uint32_t bytes : {0u, 1u, static_cast<uint32_t>(kMaxEchoBytes)}) {
    EXPECT_EQ(echo(bytes, kMaxEchoBytes, reply), "");
    EXPECT_EQ(reply.payload().size(), bytes);
  }
  EXPECT_EQ(echo(kMaxEchoBytes + 1, 0, reply), "an echo of 65537 bytes, the most is 65536");
  EXPECT_EQ(echo(UINT32_MAX, 0, reply), "an echo of 4294967295 bytes, the most is 65536");
  EXPECT_EQ(echo(0, kMaxEchoBytes + 1, reply), "an echo of 65537 bytes, the most is 65536");
}

TEST(PathProbe, MeasuresADirectPath) {
  const auto server = start_server(let_in, 100);
  EXPECT_TRUE(plausible(probe_path(address_of(*server), nullptr, "", kDialTimeout)));
}

TEST(PathProbe, MeasuresARelayedPath) {
  RelayServer relay;
  const auto server = start_server();
  const auto ends = open_ends(relay, address_of(*server));
  const Wiretap tap(*ends.dialling);
  EXPECT_TRUE(plausible(probe_path(tap.address(), nullptr, "", kDialTimeout)));
  // Its smallest transfer; how many more it makes depends on the time they take.
  EXPECT_GT(tap.down().size(), 4u << 10);
  EXPECT_GT(tap.up().size(), 4u << 10);
  EXPECT_LT(tap.down().size() + tap.up().size(), 160u << 10);
}

TEST(PathProbe, GivesUpOnAListenerThatNeverAnswers) {
  const auto listener = LocalSocket::listen().take();
  const auto facts = probe_path(listener.address(), nullptr, "", std::chrono::milliseconds(20));
  ASSERT_FALSE(facts.ok());
  EXPECT_EQ(facts.error().message, listener.address() + ": not measured within 20ms");
}

}  // namespace
}  // namespace thinpipe
