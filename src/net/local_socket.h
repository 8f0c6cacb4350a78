// TCP sockets between the gRPC of this machine and what moves its bytes on: a tunnel's end (tunnel.h), a capped line
// (capped_lines.h). Used inside net/ only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"

struct addrinfo;

namespace thinpipe {

// Owns a descriptor that child processes do not inherit and that raises no signals. One thread may be in receive() and
// one in send(); any thread may end their waiting with interrupt().
class LocalSocket {
 public:
  // Listens on loopback; the kernel chooses the port. receive_buffer: of its connections, in bytes; 0: the system's.
  static Result<LocalSocket> listen(int receive_buffer = 0);
  // address: HOST:PORT. Tries all addresses of a name; the timeout is for each.
  static Result<LocalSocket> connect(const std::string& address, Duration timeout, int receive_buffer = 0);

  LocalSocket() = default;
  ~LocalSocket();
  LocalSocket(LocalSocket&& other) noexcept;
  LocalSocket& operator=(LocalSocket&& other) noexcept;

  // A listener's address: "127.0.0.1:<port>".
  std::string address() const;
  Result<LocalSocket> accept();

  // Waits for some bytes; returns 0 when the other side will send no more.
  Result<size_t> receive(std::span<std::byte> room);
  // Waits until the kernel has all bytes.
  Status send(std::span<const std::byte> bytes);
  // Tells the other side that no more bytes will come.
  void end_sending();
  // Makes every waiting and every later call fail, or end as if the other side had closed.
  void interrupt();

 private:
  explicit LocalSocket(int descriptor) : descriptor_(descriptor) {}
  static Result<LocalSocket> connect_to(const addrinfo& where, Duration timeout, int receive_buffer);
  int descriptor_ = -1;
};

}  // namespace thinpipe
