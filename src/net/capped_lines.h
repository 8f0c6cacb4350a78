// Caps what this process sends and receives over the network, all of its connections together. gRPC has no such cap, so
// it connects to a port of this machine instead, and this passes the bytes on at the rate: what gRPC sends is sent on
// when the cap allows it, and what arrives is read no faster, so that TCP's flow control slows the sender. TLS and
// framing pass through here too and count.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "net/local_socket.h"

namespace thinpipe {

// Bits per second; 0: no cap.
struct LineCaps {
  uint64_t up = 0, down = 0;
};

// One direction of a capped line. Knows only the time that it is given.
class CapPlan {
 public:
  // What a line that is busy may catch up after it was late. A line that was idle for longer has nothing saved: it
  // begins at the rate, not with a burst.
  static constexpr Duration kLate = std::chrono::milliseconds(200);

  explicit CapPlan(uint64_t bits_per_s) : bits_per_s_(bits_per_s) {}

  // When that many more bytes may have passed, if they begin now or as soon as the line is free. In any time T, no more
  // pass than the rate allows in T + kLate.
  TimePoint pass(TimePoint now, uint64_t bytes);
  // How many bytes to take at once, so that connections take turns: those of 20 ms, and what the line is behind.
  size_t piece(TimePoint now) const;

 private:
  uint64_t bits_per_s_;
  TimePoint free_{};  // when all that has passed is through
};

// What so many bytes of a TCP connection are on the line: with the headers of full packets of an Ethernet, IPv4 and TCP
// with timestamps. Packets that TCP repeats do not count.
uint64_t bytes_on_line(uint64_t payload);
// The acknowledgements that they cause in the other direction, one for two packets.
uint64_t acknowledgement_bytes(uint64_t payload);

class CappedLines {
 public:
  explicit CappedLines(const LineCaps& caps);
  // Breaks all connections off.
  ~CappedLines();
  CappedLines(const CappedLines&) = delete;
  CappedLines& operator=(const CappedLines&) = delete;

  // A port of this machine that leads to another address: whoever connects to it is connected to that address, through
  // the caps. When it is destroyed, nobody can connect any more; connections stay. Must not outlive the lines.
  class Way {
   public:
    ~Way();
    Way(const Way&) = delete;
    Way& operator=(const Way&) = delete;
    // "127.0.0.1:PORT". The TLS of a connection proves who is at its end.
    const std::string& address() const { return address_; }

   private:
    friend class CappedLines;
    Way(CappedLines& lines, LocalSocket listener, const std::string& leads_to);

    LocalSocket listener_;
    std::string address_;
    std::thread thread_;
  };
  // to: HOST:PORT.
  Result<std::unique_ptr<Way>> way_to(const std::string& to);

 private:
  // A connection of this machine and the one that continues it.
  struct Pair {
    std::mutex mutex;  // guards `far` while it is being connected
    LocalSocket near, far;
    std::atomic<bool> over = false;
    std::thread thread;
  };

  void begin(LocalSocket near, const std::string& to);
  void serve(Pair& pair, const std::string& to);
  // Moves the bytes of one direction until it ends.
  void move(Pair& pair, bool outward);
  size_t piece(const CapPlan& plan);
  // Waits until the bytes may have passed. False: the lines are being destroyed.
  bool wait_for(CapPlan& own, CapPlan& other, uint64_t payload);

  const LineCaps caps_;
  const SystemClock clock_;
  std::mutex mutex_;  // guards the plans and the pairs
  CapPlan up_, down_;
  std::list<Pair> pairs_;
  std::stop_source stop_;
};

}  // namespace thinpipe
