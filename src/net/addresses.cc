#include "net/addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>

namespace thinpipe {
namespace {

// Longer than any name that the DNS allows.
constexpr size_t kMaxHostBytes = 255;

Result<int> parse_port(std::string_view text) {
  int port = 0;
  const auto [stopped, fault] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (fault != std::errc{} || stopped != text.data() + text.size() || port < 0 || port > 65535 || text.empty()) {
    return Error{fmt::format("'{}' is not a port: a number up to 65535 is", text)};
  }
  return port;
}

// Link-local ones mean something only together with an interface of the one who dials.
bool is_link_local(const in6_addr& address) { return IN6_IS_ADDR_LINKLOCAL(&address) != 0; }

struct LocalAddress {
  std::string text;
  bool loopback = false;
};

std::vector<LocalAddress> interface_addresses(bool with_v6) {
  std::vector<LocalAddress> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const auto* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const bool loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    char text[INET6_ADDRSTRLEN] = {};
    if (one->ifa_addr->sa_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    } else if (one->ifa_addr->sa_family == AF_INET6 && with_v6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (is_link_local(v6->sin6_addr)) continue;
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    } else {
      continue;
    }
    found.push_back({text, loopback});
  }
  ::freeifaddrs(list);
  return found;
}

using AddressGetter = int (*)(int, sockaddr*, socklen_t*);

// nullopt for what is not an internet socket, or not connected.
std::optional<int> port_of(int descriptor, AddressGetter get) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (get(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return std::nullopt;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return std::nullopt;
}

// An older kernel fills less of the structure than this header knows.
bool counts_bytes(socklen_t filled) { return filled >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof(uint64_t); }

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Error{fmt::format("'{}' is not an address: {}; HOST, HOST:PORT or [IPV6]:PORT is right", text, why)};
  };
  if (text.empty() || text.size() > kMaxHostBytes + 8) return wrong("it is empty or too long");
  std::string_view host = text, port;
  if (text.front() == '[') {
    const auto end = text.find(']');
    if (end == std::string_view::npos) return wrong("a ] is missing");
    host = text.substr(1, end - 1);
    const auto rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') return wrong("a : must follow the ]");
    port = rest.empty() ? rest : rest.substr(1);
    if (!rest.empty() && port.empty()) return wrong("the port is missing");
  } else if (const auto colon = text.find(':'); colon != std::string_view::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return wrong("the port is missing");
  }
  if (host.empty()) return wrong("the host is missing");
  for (const char c : host) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                       c == '-' || c == '_' || c == ':' || c == '%';
    if (!plain) return wrong("a host has no such character");
  }
  HostPort address{std::string(host), 0};
  if (port.empty()) return address;
  const auto number = parse_port(port);
  if (!number) return wrong(number.error().message);
  address.port = number.value();
  return address;
}

std::string to_string(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", address.host, address.port) : fmt::format("{}:{}", address.host, address.port);
}

bool is_wildcard(const HostPort& address) { return address.host == "::" || address.host == "0.0.0.0"; }

std::string any_address() {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return "0.0.0.0";
  ::close(socket);
  return "::";
}

std::vector<std::string> reachable_addresses(const HostPort& listening) {
  if (!is_wildcard(listening)) return {to_string(listening)};
  const bool any_v6 = listening.host == "::";
  const auto local = interface_addresses(any_v6);
  std::vector<std::string> addresses;
  for (const bool loopback : {false, true}) {
    for (const auto& one : local) {
      if (one.loopback == loopback) addresses.push_back(to_string({one.text, listening.port}));
    }
    if (!addresses.empty()) break;
  }
  return addresses;
}

uint64_t tcp_bytes_sent(std::span<const int> ports) {
  const auto wanted = [&](std::optional<int> port) {
    return port && std::find(ports.begin(), ports.end(), *port) != ports.end();
  };
  uint64_t sent = 0;
  std::error_code gone;  // without /proc there is nothing to count
  for (std::filesystem::directory_iterator entry("/proc/self/fd", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const std::string name = entry->path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    const auto remote = port_of(descriptor, ::getpeername);
    if (!remote || (!wanted(remote) && !wanted(port_of(descriptor, ::getsockname)))) continue;
    tcp_info info{};
    socklen_t filled = sizeof info;
    if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &filled) != 0 || !counts_bytes(filled)) continue;
    sent += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  }
  return sent;
}

}  // namespace thinpipe
