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
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/line.h"

namespace thinpipe {
namespace {

constexpr size_t kMaxAddressBytes = 255;  // DNS names are not longer
constexpr size_t kMaxShownBytes = 64;

bool is_ipv4(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

// Accepts a zone.
std::optional<in6_addr> ipv6_address(std::string_view host) {
  in6_addr address{};
  const auto zone = host.find('%');
  if (zone != std::string_view::npos && zone + 1 == host.size()) return std::nullopt;
  if (::inet_pton(AF_INET6, std::string(host.substr(0, zone)).c_str(), &address) != 1) return std::nullopt;
  return address;
}

bool is_host_name(std::string_view host) {
  if (host.ends_with('.')) host.remove_suffix(1);
  while (true) {
    const auto label = host.substr(0, host.find('.'));
    const bool fine = !label.empty() && label.size() <= 63 && label.front() != '-' && label.back() != '-';
    if (!fine) return false;
    if (label.size() == host.size()) return true;
    host.remove_prefix(label.size() + 1);
  }
}

// gRPC percent-encodes the brackets and the zone's sign of an IPv6 address.
std::string decoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = text.substr(i, 3);
    const char letter = code == "%5B" || code == "%5b"   ? '['
                        : code == "%5D" || code == "%5d" ? ']'
                        : code == "%25"                  ? '%'
                                                         : '\0';
    plain += letter == '\0' ? text[i] : letter;
    if (letter != '\0') i += 2;
  }
  return plain;
}

// A link-local address means something only together with an interface of the dialling machine.
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

// nullopt if the descriptor is not a connected internet socket.
std::optional<int> port_of(int descriptor, AddressGetter get) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (get(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return std::nullopt;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return std::nullopt;
}

// Older kernels fill in less of the structure than this header declares.
bool counts_bytes(socklen_t filled) { return filled >= offsetof(tcp_info, tcpi_bytes_retrans) + sizeof(uint64_t); }

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Error{fmt::format("'{}' is not an address: {}; write HOST:PORT, 192.0.2.7:PORT or [2001:db8::7]:PORT",
                             escaped(text, kMaxShownBytes), why)};
  };
  if (text.empty()) return wrong("it is empty");
  if (text.size() > kMaxAddressBytes) return wrong("it is too long");
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view(".-_:%[]").find(c) != std::string_view::npos;
  };
  if (!std::all_of(text.begin(), text.end(), plain)) return wrong("no address has such a character");
  std::string_view host = text, rest;
  const bool bracketed = text.front() == '[';
  if (bracketed) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) return wrong("a ] is missing");
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else if (const auto colon = text.find(':'); colon != std::string_view::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  HostPort address{std::string(host), 0};
  if (host.empty()) return wrong("the host is missing");
  if (bracketed || host.find(':') != std::string_view::npos) {
    if (!ipv6_address(host)) return wrong("that is not an IPv6 address");
  } else if (host.find_first_not_of("0123456789.") == std::string_view::npos) {
    if (!is_ipv4(address.host)) return wrong("that is not an IPv4 address");
  } else if (host.find_first_of("%[]") != std::string_view::npos || !is_host_name(host)) {
    return wrong("that is not a host's name");
  }
  if (rest.empty()) return address;
  const auto digits = rest.substr(1);
  uint16_t port = 0;
  const auto [stopped, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (rest.front() != ':' || fault != std::errc{} || stopped != digits.data() + digits.size() || port == 0) {
    return wrong("its port is not a number from 1 to 65535");
  }
  address.port = port;
  return address;
}

Status check_address(std::string_view text) {
  const auto address = TRY(parse_host_port(text));
  if (address.port == 0) return Error{fmt::format("'{}' is not an address to dial: its port is missing", text)};
  if (address.host.find('%') != std::string::npos) {
    return Error{fmt::format("'{}' is not an address to dial: its zone means something on one machine only", text)};
  }
  return {};
}

std::string caller_network(std::string_view text) {
  auto plain = decoded(text.substr(0, kMaxAddressBytes));
  for (const std::string_view scheme : {"ipv4:", "ipv6:"}) {
    if (plain.starts_with(scheme)) plain.erase(0, scheme.size());
  }
  const auto caller = parse_host_port(plain);
  auto address = caller ? ipv6_address(caller.value().host) : std::nullopt;
  if (caller && is_ipv4(caller.value().host)) return caller.value().host;
  if (!address) return std::string(text.substr(0, kMaxShownBytes));
  std::array<char, INET6_ADDRSTRLEN> shown{};
  if (IN6_IS_ADDR_V4MAPPED(&*address)) return ::inet_ntop(AF_INET, address->s6_addr + 12, shown.data(), shown.size());
  std::memset(address->s6_addr + 8, 0, 8);
  return fmt::format("{}/64", ::inet_ntop(AF_INET6, &*address, shown.data(), shown.size()));
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
