// Our shaping against the kernel's: a transfer over a shaped link must be as fast as over a line that tc has slowed to
// that rate. Two network namespaces joined by a veth pair, a process in each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <thread>

#include "net/grpc_links.h"
#include "net/peer_process.h"
#include "net/transfer.h"

namespace thinpipe {
namespace {

using test::PeerProcess;

constexpr uint64_t kRate = 80'000'000;
constexpr int64_t kMessages = 320;  // 21 MB, two seconds

// Two private namespaces and the line between them; removed when destroyed. why_not() is "" if they exist.
class ShapedNamespaces {
 public:
  ShapedNamespaces() {
    if (::geteuid() != 0) {
      why_not_ = "network namespaces need root";
      return;
    }
    const auto rate = fmt::format("{}bit", kRate);
    // The bucket holds 6.5 ms of the rate: one of 4 KB loses tokens whenever the kernel's timer is 0.4 ms late.
    for (const auto& name : {name_of('a'), name_of('b')}) run({"ip", "netns", "add", name});
    run({"ip", "link", "add", "line", "netns", name_of('a'), "type", "veth", "peer", "name", "line", "netns",
         name_of('b')});
    run({"ip", "-n", name_of('a'), "address", "add", "10.77.0.1/30", "dev", "line"});
    run({"ip", "-n", name_of('b'), "address", "add", "10.77.0.2/30", "dev", "line"});
    for (const auto& name : {name_of('a'), name_of('b')}) {
      run({"ip", "-n", name, "link", "set", "line", "up"});
      run({"tc", "-n", name, "qdisc", "add", "dev", "line", "root", "tbf", "rate", rate, "burst", "512kbit", "latency",
           "400ms"});
    }
  }
  ~ShapedNamespaces() {
    for (const char end : {'a', 'b'}) (void)PeerProcess({"ip", "netns", "delete", name_of(end)}).wait();
  }
  ShapedNamespaces(const ShapedNamespaces&) = delete;
  ShapedNamespaces& operator=(const ShapedNamespaces&) = delete;

  const std::string& why_not() const { return why_not_; }
  std::vector<std::string> peer_in(char end, const std::string& mode, const std::string& address) const {
    return {"ip", "netns", "exec", name_of(end), THINPIPE_PEER_PROGRAM, mode, address, std::to_string(kMessages)};
  }

 private:
  static std::string name_of(char end) { return fmt::format("thinpipe-{}-{}", ::getpid(), end); }

  void run(const std::vector<std::string>& command) {
    if (why_not_.empty()) why_not_ = PeerProcess(command).wait();
  }

  std::string why_not_;
};

double number_in(const std::string& line) {
  double number = 0;
  const auto [stopped, fault] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (fault != std::errc{} || number <= 0) ADD_FAILURE() << "the receiver said '" << line << "'";
  return number;
}

double rate_over_the_kernels_line(const ShapedNamespaces& namespaces) {
  PeerProcess receiver(namespaces.peer_in('a', "receive", "10.77.0.1:0"));
  const auto port = receiver.line();
  PeerProcess sender(namespaces.peer_in('b', "send", "10.77.0.1:" + port));
  const auto rate = number_in(receiver.line());
  EXPECT_EQ(sender.wait(), "");
  EXPECT_EQ(receiver.wait(), "");
  return rate;
}

double rate_over_a_shaped_link() {
  GrpcLinks links;
  auto [near, far] = links.make();
  PacketLink upper(std::move(near), transfer_rules(), 0, {.rate_bits_per_s = kRate}, 1);
  PacketLink lower(std::move(far), transfer_rules(), 0);
  std::thread sender([&] { EXPECT_TRUE(send_transfer(upper, kMessages).ok()); });
  const auto rate = receive_transfer(lower, kMessages);
  sender.join();
  EXPECT_TRUE(rate.ok());
  return rate.ok() ? rate.value() : 0;
}

// Clocks set both rates, so this may compare them. The kernel also counts the headers of its packets, 66 of 1514
// bytes: its line carries 4.4 % less.
TEST(VethRate, AShapedLinkIsAsFastAsALineTheKernelShapes) {
  const ShapedNamespaces namespaces;
  if (!namespaces.why_not().empty()) GTEST_SKIP() << namespaces.why_not();
  // A busy machine sometimes delays one of the two, but a wrong shape is wrong every time.
  constexpr int kTries = 6;
  double ratio = 0;
  for (int i = 0; i < kTries && std::abs(ratio - 1) > 0.10; ++i) {
    const auto kernel = rate_over_the_kernels_line(namespaces);
    ratio = rate_over_a_shaped_link() / kernel;
  }
  EXPECT_NEAR(ratio, 1, 0.10) << "shaped over the kernel's";
}

}  // namespace
}  // namespace thinpipe
