// Addresses: HOST:PORT as people write it, where this machine can be dialled, whom to count as one caller, and how many
// bytes this process's connections have sent.
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
  int port = 0;      // 1 to 65535; 0: none given
};

// The only place that reads addresses: "my.host:7000", "10.0.0.1:7000", "[::1]:7000", each also without its port, and
// "::1"; at most 255 bytes. An IPv6 address may have a zone ("fe80::1%eth0"). The text may be hostile; an error is one
// short line that says what is wrong.
Result<HostPort> parse_host_port(std::string_view text);
// Accepts what another machine can dial: it needs a port, and no zone, which only means something on this machine.
Status check_address(std::string_view text);
// With the brackets that an IPv6 address needs before a port.
std::string to_string(const HostPort& address);

// The part of a caller's address, as gRPC writes it, that the caller cannot change at will: "192.0.2.7" for
// "ipv4:192.0.2.7:40000", "2001:db8:1:2::/64" for "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40000". A text that is no IP address
// comes back as it is, cut to 64 bytes.
std::string caller_network(std::string_view address);

// 0.0.0.0 or ::
bool is_wildcard(const HostPort& address);
// The host to listen at on all interfaces: ::, which takes IPv4 too, or 0.0.0.0 where the kernel has no IPv6.
std::string any_address();

// Where others may dial a server that listens there: at that address, or, for a wildcard, at every address of this
// machine's interfaces; at the loopback ones only when there is no other.
std::vector<std::string> reachable_addresses(const HostPort& listening);

// Bytes that the kernel has sent on this process's open TCP connections with one of these ports at either end. Includes
// the transport's framing and TLS, but neither what TCP repeats nor what waits in the socket. A connection whose two
// ends are both in this process counts twice. A closed connection no longer counts, so ask before it closes.
uint64_t tcp_bytes_sent(std::span<const int> ports);

}  // namespace thinpipe
