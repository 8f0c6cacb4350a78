// What a relay sees of a link that passes through it: with TLS between the neighbours nothing of its bytes, without it
// all of them. The second shows that the first would be noticed.
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <mutex>

#include "net/link_conformance.h"
#include "net/path_probe.h"
#include "net/relayed_links.h"
#include "net/test_certificate.h"

namespace thinpipe {
namespace {

constexpr LinkLimits kLimits{4, 4, kMaxMessageBytes};
constexpr char kName[] = "stage-1.a-run";

MessageBytes bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

// All that passed a relay, each way.
class Wiretap {
 public:
  TunnelOptions options() {
    return {.observe = [this](const TunnelHello& from, const grpc::ByteBuffer& buffer) {
      std::vector<grpc::Slice> slices;
      ASSERT_TRUE(buffer.Dump(&slices).ok());
      const std::lock_guard lock(mutex_);
      for (const auto& slice : slices) (from.dials ? down_ : up_).append(slice.begin(), slice.end());
    }};
  }
  bool saw_down(std::string_view text) const { return saw(down_, text); }
  bool saw_up(std::string_view text) const { return saw(up_, text); }
  size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return down_.size() + up_.size();
  }

 private:
  bool saw(const std::string& passed, std::string_view text) const {
    const std::lock_guard lock(mutex_);
    return passed.find(text) != std::string::npos;
  }

  mutable std::mutex mutex_;
  std::string down_;
  std::string up_;
};

TEST(RelaySecrecy, TheRelaySeesPlaintextOnlyWithoutTls) {
  constexpr std::string_view kDown = "the activations of the very first stage";
  constexpr std::string_view kUp = "the gradients of the very last stage";
  const TestCertificate certificate(kName);
  for (const bool with_tls : {true, false}) {
    Wiretap tap;
    RelayServer relay(let_through, tap.options());
    const auto server = LinkServer::start("127.0.0.1:0", kMaxMessageBytes, let_in,
                                          with_tls ? certificate.server_credentials() : nullptr)
                            .take();
    const auto ends = open_ends(relay, address_of(*server));
    const auto upper = dial_link(ends.dialling->local_address(), hello_for(0), kLimits, kDialTimeout,
                                 with_tls ? certificate.channel_credentials() : nullptr, with_tls ? kName : "")
                           .take();
    const auto lower = server->service().wait_for(0, 1, "", kLimits).take();
    ASSERT_TRUE(upper->send(bytes_of(kDown)).ok());
    EXPECT_EQ(lower->receive().value(), bytes_of(kDown));
    ASSERT_TRUE(lower->send(bytes_of(kUp)).ok());
    EXPECT_EQ(upper->receive().value(), bytes_of(kUp));
    EXPECT_GT(tap.bytes(), kDown.size() + kUp.size());
    EXPECT_EQ(tap.saw_down(kDown), !with_tls);
    EXPECT_EQ(tap.saw_up(kUp), !with_tls);
  }
}

TEST(RelaySecrecy, ALinkIsDialledOnlyToWhoProvesTheExpectedName) {
  const TestCertificate certificate(kName);
  std::vector<std::string> identities;
  const auto gate = [&](const LinkHello&, const LinkCaller& caller) {
    identities = caller.names;
    return Status{};
  };
  const auto server = LinkServer::start("127.0.0.1:0", kMaxMessageBytes, gate, certificate.server_credentials()).take();
  const auto dial = [&](const std::string& expected_name) {
    return dial_link(address_of(*server), hello_for(0), kLimits, kDialTimeout, certificate.channel_credentials(),
                     expected_name);
  };
  EXPECT_FALSE(dial("stage-2.a-run").ok());
  EXPECT_FALSE(dial("").ok()) << "the address is not a name of its";
  EXPECT_TRUE(identities.empty());
  const auto link = dial(kName);
  EXPECT_TRUE(link.ok());
  server->shutdown("all has been seen");
  EXPECT_EQ(identities, std::vector<std::string>{kName});
}

TEST(RelaySecrecy, APathIsMeasuredOnlyToWhoProvesTheExpectedName) {
  const TestCertificate certificate(kName);
  const auto server =
      LinkServer::start("127.0.0.1:0", kMaxMessageBytes, let_in, certificate.server_credentials()).take();
  const auto probe = [&](const std::string& expected_name) {
    return probe_path(address_of(*server), certificate.channel_credentials(), expected_name, kDialTimeout);
  };
  EXPECT_FALSE(probe("stage-2.a-run").ok());
  EXPECT_TRUE(probe(kName).ok());
  EXPECT_FALSE(probe_path(address_of(*server), nullptr, "", kDialTimeout).ok());
}

}  // namespace
}  // namespace thinpipe
