// What the kernel has counted on this process's TCP connections: the bytes a transport really sends, framing included,
// beside those of the messages (LinkMeter).
#pragma once

#include <cstdint>

namespace thinpipe {

struct SocketBytes {
  uint64_t sent = 0;  // handed to the network, once each: neither what TCP repeats nor what waits in the socket
  uint64_t received = 0;
};

// The sum over this process's open TCP sockets that have `port` at either end; a connection whose two ends are both in
// this process counts both. A connection that is closed is no longer counted, so ask before. None: zeros.
SocketBytes tcp_bytes_of_port(int port);

}  // namespace thinpipe
