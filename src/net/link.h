// One end of a connection between two neighbouring stages, as the transport sees it. Carries frames both ways.
// PacketLink (packet_link.h) gives it meaning, queues and threads. Every transport passes tests/net/link_conformance.h.
#pragma once

#include <string>

#include "proto/frame.pb.h"

namespace thinpipe {

// Frames arrive whole, once and in the order of their writes; the two directions do not wait for each other.
//
// Threads: one thread writes and one reads; cancel() comes from any thread. A Link starts no threads. Destroying an end
// ends the other.
class Link {
 public:
  virtual ~Link() = default;

  // Waits until the transport has room. False: the link has ended, and the frame is lost.
  virtual bool write(wire::Frame frame) = 0;
  // Called by the writing thread: it will write nothing more.
  virtual void end_writing() = 0;

  // Waits for the next frame. False: no more frames will come, because the other end has stopped writing or the link
  // has ended.
  virtual bool read(wire::Frame& frame) = 0;

  // Ends the link at once: write() and read() return false soon. Frames on their way may be lost.
  virtual void cancel() = 0;

  // Call it once, after the last write() and read(). Ends the link and returns why it is over, if known.
  virtual std::string finish() = 0;
};

}  // namespace thinpipe
