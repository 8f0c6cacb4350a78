// Measuring a path: what an echo must be, who answers, and that the facts are those of the path taken.
#include "net/path_probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "net/echo.h"
#include "net/link_conformance.h"
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

grpc::ByteBuffer request_of(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(Echo, AnswersWithSoManyBytes) {
  for (const uint32_t bytes : {0u, 1u, 255u, 65537u, static_cast<uint32_t>(kMaxEchoBytes)}) {
    EXPECT_EQ(echo_answer(echo_request(3, bytes)).value().Length(), bytes);
    EXPECT_EQ(echo_request(bytes, 0).Length(), kEchoHeaderBytes + bytes);
    EXPECT_TRUE(echo_answer(echo_request(bytes, 0)).ok());
  }
}

TEST(Echo, ReadsTheCountAcrossSlices) {
  const grpc::Slice slices[] = {grpc::Slice(std::string(1, '\x02')), grpc::Slice(std::string("\x01\0", 2)),
                                grpc::Slice(std::string("\0more", 5))};
  EXPECT_EQ(echo_answer(grpc::ByteBuffer(slices, 3)).value().Length(), 258u);
}

TEST(Echo, RefusesWhatIsTooShortOrTooMuch) {
  for (size_t bytes = 0; bytes < kEchoHeaderBytes; ++bytes) {
    EXPECT_TRUE(holds(echo_answer(request_of(std::string(bytes, '\0'))).error(), "needs 4"));
  }
  EXPECT_TRUE(holds(echo_answer(request_of(std::string("\x01\0\x10\0", 4))).error(),
                    "an echo for 1048577 bytes, the most is 1048576"));
  EXPECT_TRUE(holds(echo_answer(request_of("\xff\xff\xff\xff")).error(), "an echo for 4294967295 bytes"));
  EXPECT_TRUE(holds(echo_answer(request_of(std::string(kEchoHeaderBytes + kMaxEchoBytes + 1, '\0'))).error(),
                    "an echo with 1048577 bytes, the most is 1048576"));
}

TEST(PathProbe, MeasuresADirectPath) {
  const auto server = start_server(let_in, 100);  // links of small messages do not make the measure small
  EXPECT_TRUE(plausible(probe_path(address_of(*server), nullptr, "", kDialTimeout)));
}

TEST(PathProbe, MeasuresARelayedPath) {
  RelayServer relay;
  const auto server = start_server();
  const auto ends = open_ends(relay, address_of(*server));
  EXPECT_TRUE(plausible(probe_path(ends.dialling->local_address(), nullptr, "", kDialTimeout)));
  const auto meter = relay.service().meters().at(0);
  // The smallest of its transfers; how many more it makes goes by the time they take.
  EXPECT_GT(meter.bytes_down, 4u << 10);
  EXPECT_GT(meter.bytes_up, 4u << 10);
  EXPECT_LT(meter.bytes_down + meter.bytes_up, 160u << 10);
}

TEST(PathProbe, APeerMayRefuseToBeMeasured) {
  LinkCaller asked;
  const auto server = LinkServer::start("127.0.0.1:0", kMaxMessageBytes, let_in, nullptr,
                                        {.may_measure =
                                             [&](const LinkCaller& caller) {
                                               asked = caller;
                                               return Status(Error{"you are not of this run"});
                                             }})
                          .take();
  const auto facts = probe_path(address_of(*server), nullptr, "", kDialTimeout);
  ASSERT_FALSE(facts.ok());
  EXPECT_EQ(facts.error().message, address_of(*server) + ": you are not of this run");
  EXPECT_NE(asked.address.find("127.0.0.1"), std::string::npos);
}

TEST(PathProbe, SaysThatNobodyListens) {
  auto server = start_server();
  const auto address = address_of(*server);
  server.reset();
  const auto facts = probe_path(address, nullptr, "", kDialTimeout);
  ASSERT_FALSE(facts.ok());
  EXPECT_TRUE(holds(facts.error(), address + ": "));
  EXPECT_TRUE(holds(facts.error(), "Connection refused"));
}

TEST(PathProbe, GivesUpOnAListenerThatNeverAnswers) {
  const auto listener = LocalSocket::listen().take();
  const auto facts = probe_path(listener.address(), nullptr, "", std::chrono::milliseconds(20));
  ASSERT_FALSE(facts.ok());
  EXPECT_EQ(facts.error().message, listener.address() + ": not measured within 20ms");
}

}  // namespace
}  // namespace thinpipe
