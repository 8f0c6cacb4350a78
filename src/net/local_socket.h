// TCP sockets between a tunnel's end and the gRPC beside it, both on this machine. Inside net/ only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace thinpipe {

// Owns a descriptor that children of the process do not inherit; it raises no signals. One thread may be in receive()
// and one in send(); interrupt() ends their waiting from any thread.
class LocalSocket {
 public:
  // On loopback, on a port of the kernel's choice, for one connection.
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

  // Waits for some bytes; 0 when the other side will send no more.
  Result<size_t> receive(std::span<std::byte> room);
  // Waits until all are in the kernel's hands.
  Status send(std::span<const std::byte> bytes);
  // No more will be sent.
  void end_sending();
  // Every call that waits and every later one fails, or ends as if the other side had closed.
  void interrupt();

 private:
  explicit LocalSocket(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace thinpipe
