// One end of a connection between two neighbouring stages. It moves opaque bytes both ways and never sees a tensor.
// Every transport passes the same suite, tests/net/link_conformance.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace thinpipe {

// Messages arrive whole, once and in the order of their sends; the two directions do not wait for each other.
//
// A link is open until close() is called on either end, an end is destroyed or the transport fails. The first of these
// decides the reason; it holds for both ends and for good.
//
// Threads: per end at most one thread in send() and at most one in receive(), which may be different ones; close() from
// any thread at any time. No call may be under way when an end is destroyed.
class Link {
 public:
  virtual ~Link() = default;

  // Takes the message; it is not copied on its way inside the process. Does not wait while fewer messages than the
  // direction's capacity are sent and not yet received; else waits for room. When the link is closed, also while it
  // waits: an error that holds the reason, and the message is lost.
  virtual Status send(std::vector<std::byte> message) = 0;

  // Waits for the next message. On a closed link, first what has arrived, and what the closing end had sent before it
  // closed; then, every time, an error that holds the reason. (Messages on their way *to* the closing end may be lost.)
  virtual Result<std::vector<std::byte>> receive() = 0;

  // Wakes everyone who waits, on both ends. Again on a closed link: does nothing. May wait itself: a shaped link first
  // sends what it holds, for at most its flush time (shaped_link.h).
  virtual void close(std::string reason) = 0;
};

}  // namespace thinpipe
