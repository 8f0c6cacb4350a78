#include "net/local_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>  // cannot be included together with netinet/tcp.h
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "net/addresses.h"

namespace thinpipe {
namespace {

constexpr int kLocalBacklog = 8;
constexpr unsigned kUnansweredMs = 60'000;

Error system_error(const std::string& what) { return Error{fmt::format("{}: {}", what, std::strerror(errno))}; }

// gRPC has already gathered the bytes into packets.
void set_no_delay(int descriptor) {
  const int on = 1;
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Before it listens or connects: TCP then never offers a larger window.
void set_receive_buffer(int descriptor, int bytes) {
  if (bytes > 0) (void)::setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

// Waits for a connect() under way; returns 0 or its errno.
int finish_connecting(int descriptor, Duration timeout) {
  pollfd wanted{.fd = descriptor, .events = POLLOUT, .revents = 0};
  const auto timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  int ready;
  do {
    ready = ::poll(&wanted, 1, static_cast<int>(timeout_ms));
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return errno;
  if (ready == 0) return ETIMEDOUT;
  int fault = 0;
  socklen_t bytes = sizeof fault;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &fault, &bytes) == 0 ? fault : errno;
}

}  // namespace

LocalSocket::~LocalSocket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

LocalSocket::LocalSocket(LocalSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

LocalSocket& LocalSocket::operator=(LocalSocket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Result<LocalSocket> LocalSocket::listen(int receive_buffer) {
  LocalSocket self(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (self.descriptor_ < 0) return system_error("cannot make a socket");
  set_receive_buffer(self.descriptor_, receive_buffer);
  const sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  if (::bind(self.descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(self.descriptor_, kLocalBacklog) != 0) {
    return system_error("cannot listen on 127.0.0.1");
  }
  return self;
}

Result<LocalSocket> LocalSocket::connect(const std::string& text, Duration timeout, int receive_buffer) {
  TRY(check_address(text));
  const auto address = TRY(parse_host_port(text));
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_flags = AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  const int fault = ::getaddrinfo(address.host.c_str(), fmt::format("{}", address.port).c_str(), &wanted, &found);
  if (fault != 0) return Error{fmt::format("cannot find {}: {}", text, ::gai_strerror(fault))};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  for (const auto* one = found;; one = one->ai_next) {
    auto self = connect_to(*one, timeout, receive_buffer);
    if (self) return self;
    if (one->ai_next == nullptr) return Error{fmt::format("cannot connect to {}: {}", text, self.error().message)};
  }
}

Result<LocalSocket> LocalSocket::connect_to(const addrinfo& where, Duration timeout, int receive_buffer) {
  LocalSocket self(::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (self.descriptor_ < 0) return system_error("no socket");
  set_receive_buffer(self.descriptor_, receive_buffer);
  if (::connect(self.descriptor_, where.ai_addr, where.ai_addrlen) != 0) {
    if (errno == EINPROGRESS) errno = finish_connecting(self.descriptor_, timeout);
    if (errno != 0) return Error{std::strerror(errno)};
  }
  const int flags = ::fcntl(self.descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(self.descriptor_, F_SETFL, flags & ~O_NONBLOCK) != 0) return Error{std::strerror(errno)};
  set_no_delay(self.descriptor_);
  // Else a machine that has vanished would keep a send() waiting for a quarter of an hour.
  (void)::setsockopt(self.descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnansweredMs, sizeof kUnansweredMs);
  return self;
}

std::string LocalSocket::address() const {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  const int got = ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &bytes);
  TP_CHECK(got == 0, "a socket without an address: {}", std::strerror(errno));
  return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
}

Result<LocalSocket> LocalSocket::accept() {
  int accepted;
  do {
    accepted = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
  } while (accepted < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (accepted < 0) return system_error("cannot accept a connection");
  set_no_delay(accepted);
  return LocalSocket(accepted);
}

Result<size_t> LocalSocket::receive(std::span<std::byte> room) {
  ssize_t got;
  do {
    got = ::recv(descriptor_, room.data(), room.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return system_error("cannot receive");
  return static_cast<size_t>(got);
}

Status LocalSocket::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return system_error("cannot send");
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return {};
}

void LocalSocket::end_sending() { (void)::shutdown(descriptor_, SHUT_WR); }
void LocalSocket::interrupt() { (void)::shutdown(descriptor_, SHUT_RDWR); }

}  // namespace thinpipe
