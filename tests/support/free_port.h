// A port on loopback for a program that cannot choose one itself.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/files.h"
#include "base/result.h"

namespace thinpipe::test {

// Nobody listens there now.
inline int free_port() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof place;
  TP_CHECK(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&place), bytes) == 0 &&
               ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&place), &bytes) == 0,
           "no free port: {}", std::strerror(errno));
  return ntohs(place.sin_port);
}

}  // namespace thinpipe::test
