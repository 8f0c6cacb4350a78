#include "net/socket_bytes.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace thinpipe {
namespace {

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

SocketBytes tcp_bytes_of_port(int port) {
  SocketBytes sum;
  std::error_code gone;  // without /proc there is nothing to count
  for (std::filesystem::directory_iterator entry("/proc/self/fd", gone), end; !gone && entry != end;
       entry.increment(gone)) {
    const std::string name = entry->path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    const auto remote = port_of(descriptor, ::getpeername);
    if (!remote || (*remote != port && port_of(descriptor, ::getsockname) != port)) continue;
    tcp_info info{};
    socklen_t filled = sizeof info;
    if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &filled) != 0 || !counts_bytes(filled)) continue;
    sum.sent += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    sum.received += info.tcpi_bytes_received;
  }
  return sum;
}

}  // namespace thinpipe
