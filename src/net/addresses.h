// Addresses: parses HOST:PORT, lists where this machine can be dialled, groups callers by network, and counts the bytes
// that this process's connections have sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace thinpipe {

struct HostPort {
  std::string host;  // a name, an IPv4 address, or an IPv6 address without brackets
  int port = 0;      // 1 to 65535; 0: not given
};

// The only parser of addresses. Accepts "my.host:7000", "10.0.0.1:7000", "[::1]:7000", each also without its port, and
// "::1"; at most 255 bytes. An IPv6 address may have a zone ("fe80::1%eth0"). The text may be hostile; an error is one
// short line that says what is wrong.
Result<HostPort> parse_host_port(std::string_view text);
// Checks that another machine can dial it: it needs a port and no zone, which means something only on this machine.
Status check_address(std::string_view text);
// Adds the brackets that an IPv6 address needs before a port.
std::string to_string(const HostPort& address);

// Returns the part of a caller's address, as gRPC writes it, that the caller cannot change at will: "192.0.2.7" for
// "ipv4:192.0.2.7:40000", "2001:db8:1:2::/64" for "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000". Returns any other text
// unchanged, cut to 64 bytes.
std::string caller_network(std::string_view address);

// 0.0.0.0 or ::
bool is_wildcard(const HostPort& address);
// The host that means all interfaces: ::, which accepts IPv4 too, or 0.0.0.0 if the kernel has no IPv6.
std::string any_address();

// Returns where others can dial a server that listens there: that address or, for a wildcard, every address of this
// machine's interfaces. Returns loopback addresses only if there are no others.
std::vector<std::string> reachable_addresses(const HostPort& listening);

// Counts what the kernel has sent on this process's open TCP connections with one of these ports at either end.
// Includes the transport's framing and TLS, but not what TCP repeats or what waits in the socket. A connection whose
// two ends are both in this process counts twice. A closed connection no longer counts, so ask before it closes.
uint64_t tcp_bytes_sent(std::span<const int> ports);

}  // namespace thinpipe
