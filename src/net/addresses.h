// HOST:PORT as people write it, where this machine can be dialled, and what this process's connections have sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;      // 0: none given
};

// "10.0.0.1", "10.0.0.1:7000", "[::1]:7000", "::1", "my.host:7000". An error names what is wrong.
Result<HostPort> parse_host_port(std::string_view text);
// With the brackets that an IPv6 address needs before a port.
std::string to_string(const HostPort& address);

// 0.0.0.0 or ::
bool is_wildcard(const HostPort& address);
// The one to listen at for everybody: ::, which hears IPv4 too, or 0.0.0.0 where the kernel has no IPv6.
std::string any_address();

// Where others may dial what listens at that host: itself, or, when it is a wildcard (0.0.0.0, ::), every address of
// this machine's interfaces that others can know; the loopback ones only when there is no other.
std::vector<std::string> reachable_addresses(const HostPort& listening);

// Bytes that the kernel has sent on this process's open TCP connections that have one of the ports at either end, a
// transport's framing and TLS included: neither what TCP repeats nor what waits in the socket. A connection whose two
// ends are both in this process counts both. A closed connection no longer counts, so ask before.
uint64_t tcp_bytes_sent(std::span<const int> ports);

}  // namespace thinpipe
