#include "net/addresses.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/local_socket.h"

namespace thinpipe {
namespace {

TEST(Addresses, AreReadWithAndWithoutAPort) {
  struct Case {
    std::string text, host;
    int port;
  };
  const Case cases[] = {{"my.host", "my.host", 0},
                        {"my.host:7000", "my.host", 7000},
                        {"my.host.:7000", "my.host.", 7000},
                        {"10.0.0.1", "10.0.0.1", 0},
                        {"10.0.0.1:1", "10.0.0.1", 1},
                        {"::", "::", 0},
                        {"2001:db8::7", "2001:db8::7", 0},
                        {"[::1]", "::1", 0},
                        {"[::1]:65535", "::1", 65535},
                        {"[fe80::1%eth0]:7000", "fe80::1%eth0", 7000},
                        {"::1:80", "::1:80", 0}};
  for (const auto& one : cases) {
    const auto address = parse_host_port(one.text).take();
    EXPECT_EQ(address.host, one.host);
    EXPECT_EQ(address.port, one.port) << one.text;
  }
  for (const std::string bad :
       {"a:0", "a:65536", "[::1]:", "[::1]:0", "[10.0.0.1]:1", "1.2.3", "fe80::1%", "::1::", "a:b:1"}) {
    EXPECT_FALSE(parse_host_port(bad).ok()) << bad;
  }
  EXPECT_EQ(to_string({"::1", 7000}), "[::1]:7000");
  EXPECT_EQ(to_string({"my.host", 7000}), "my.host:7000");
}

TEST(Addresses, DialAddress_NeedsAHostAndAPort) {
  for (const std::string good : {"a:1", "run.example.org:7400", "run.example.org.:7400", "my_host:1", "192.0.2.7:65535",
                                 "[::1]:80", "[2001:db8::7]:7400", "x--1.7:9"}) {
    EXPECT_TRUE(check_address(good).ok()) << good;
  }
  for (const std::string bad : {"",
                                "a",
                                "a:",
                                ":1",
                                "a:0",
                                "a:65536",
                                "a:-1",
                                "a:+1",
                                "a:1x",
                                "a: 1",
                                "::1:80",
                                "[::1]",
                                "[::1]80",
                                "[:1]:80",
                                "[a]:80",
                                "[::1:80",
                                "::1]:80",
                                "1.2.3:80",
                                "1.2.3.256:80",
                                "1.2.3.4.5:80",
                                "-a:1",
                                "a-:1",
                                "a..b:1",
                                ".a:1",
                                "a/b:1",
                                "a b:1",
                                "a%:1",
                                "http://a:1",
                                "\xc3\xa9:1",
                                "a:1\n",
                                "[fe80::1%eth0]:1",
                                "user@a:1"}) {
    const auto status = check_address(bad);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(check_address(std::string("a\0b:1", 5)).ok());
  EXPECT_FALSE(check_address(std::string("[::1\0]:1", 8)).ok());
  EXPECT_FALSE(check_address(std::string(64, 'a') + ":1").ok());
  std::string longest;
  while (longest.size() < 250) longest += "abcd.";
  EXPECT_TRUE(check_address(longest + "a:10").ok());
  EXPECT_FALSE(check_address(longest + "abc:100").ok());
}

TEST(CallerNetwork, IsThePartTheCallerCannotChoose) {
  const std::pair<std::string, std::string> cases[] = {
      {"ipv4:192.0.2.7:40000", "192.0.2.7"},
      {"192.0.2.7:40000", "192.0.2.7"},
      {"192.0.2.7", "192.0.2.7"},
      {"ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000", "2001:db8:1:2::/64"},
      {"ipv6:[2001:db8:1:2:ffff::1]:40000", "2001:db8:1:2::/64"},
      {"[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"},
      {"2001:db8:1:2::9", "2001:db8:1:2::/64"},
      {"ipv6:%5Bfe80::1%25eth0%5D:40000", "fe80::/64"},
      {"ipv6:[::ffff:192.0.2.7]:40000", "192.0.2.7"},
      {"unix:/tmp/x", "unix:/tmp/x"},
      {"[", "["},
      {"", ""},
  };
  for (const auto& [address, network] : cases) EXPECT_EQ(caller_network(address), network) << address;
  EXPECT_EQ(caller_network(std::string(1000, 'x')).size(), 64U);
}

// A listening socket at that address and its port; -1 if the machine has no such address.
struct Listener {
  int descriptor = -1;
  int port = 0;

  explicit Listener(const in6_addr& host) : descriptor(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in6 place{};
    place.sin6_family = AF_INET6;
    place.sin6_addr = host;
    socklen_t bytes = sizeof place;
    auto* address = reinterpret_cast<sockaddr*>(&place);
    const bool listens = ::bind(descriptor, address, bytes) == 0 && ::listen(descriptor, 1) == 0 &&
                         ::getsockname(descriptor, address, &bytes) == 0;
    port = listens ? ntohs(place.sin6_port) : -1;
  }
  ~Listener() { ::close(descriptor); }
};

TEST(LocalSocket, ConnectsToAnyAddressOfThisMachine) {
  const auto listener = LocalSocket::listen().take();
  EXPECT_TRUE(LocalSocket::connect(listener.address(), std::chrono::seconds(30)).ok());
  // A tunnel's end reaches its own worker even if that listens at one IPv6 address only.
  const Listener v6(in6addr_loopback);
  if (v6.port < 0) GTEST_SKIP() << "no IPv6 here";
  const auto socket = LocalSocket::connect(fmt::format("[::1]:{}", v6.port), std::chrono::seconds(30));
  EXPECT_TRUE(socket.ok()) << socket.error().message;
}

TEST(LocalSocket, RefusesAnAddressWithoutAPort) {
  for (const std::string address : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:1x"}) {
    EXPECT_FALSE(LocalSocket::connect(address, std::chrono::seconds(30)).ok()) << address;
  }
}

}  // namespace
}  // namespace thinpipe
