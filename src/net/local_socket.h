// TCP sockets between a tunnel's end and the gRPC of the same machine. Used inside net/ only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace thinpipe {

// Owns a descriptor that child processes do not inherit and that raises no signals. One thread may be in receive() and
// one in send(); any thread may end their waiting with interrupt().
class LocalSocket {
 public:
  // Listens on loopback for one connection; the kernel chooses the port.
  static Result<LocalSocket> listen();
  // address: HOST:PORT of a server on this machine.
  static Result<LocalSocket> connect(const std::string& address, Duration timeout);

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
  int descriptor_ = -1;
};

}  // namespace thinpipe
