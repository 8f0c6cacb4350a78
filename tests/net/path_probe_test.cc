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
  const Wiretap tap(*ends.dialling);
  EXPECT_TRUE(plausible(probe_path(tap.address(), nullptr, "", kDialTimeout)));
  // The smallest of its transfers; how many more it makes depends on the time they take.
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
