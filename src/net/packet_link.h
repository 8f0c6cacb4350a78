// One end of a boundary between two stages, in two processes or in one, on top of any Link. Sends and receives packets
// by tag, holds early packets, drops late and repeated ones, and fails on packets that no honest neighbour sends.
// Stages learn of commits and aborts at different times; this class hides the difference.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "net/link.h"
#include "net/packet.h"
#include "net/packet_shelf.h"
#include "net/shape_plan.h"

namespace thinpipe {

// Runs two threads: a sender and a receiver.
//
// send() puts a packet into the outbox, which holds M + 1: all packets that a step sends one way, and its end. The
// sender writes each to the link when it is due: at once, or when it would have arrived on the line that `shape`
// describes. That line carries whole frames.
//
// The receiver does not wait for the compute thread, so in a step the other end's packets wait for the network only
// (for evaluations see below). What becomes of an arriving packet is in packet_shelf.h; a packet that is refused there
// or by packet_tag() fails the link.
//
// A step's packets are few, and the schedule bounds them; an evaluation may have any number. When kEvaluationAhead of
// those are held, the receiver takes nothing more until one is received or old. The other end's send() eventually
// waits, so a fast stage does not fill a slow one's memory with a whole evaluation.
//
// A payload above the rules' size fails the link, too.
//
// The first failure sticks and ends every wait: close(), a refused packet, the other end's last word, or the end of the
// connection. The end that closes sends its outbox at once, then the reason as its last word. The other end fails with
// that reason.
//
// Threads: one compute thread calls enter(), send() and receive(); any thread may call the rest. No call may be under
// way when it is destroyed.
class PacketLink {
 public:
  static constexpr size_t kEvaluationAhead = PacketShelf::kEvaluationAhead;

  // Starts at the given epoch; the step is unknown until enter(). seed: for the shape's jitter.
  PacketLink(std::unique_ptr<Link> link, PacketRules rules, uint64_t epoch, const LinkShape& shape = {},
             uint64_t seed = 0);
  // Closes, and gives the outbox half a second to leave.
  ~PacketLink();
  PacketLink(const PacketLink&) = delete;
  PacketLink& operator=(const PacketLink&) = delete;

  // The compute thread moves on, never back: a later epoch with any step, or the same epoch with the same or a later
  // step. Drops held packets that are older now. A held packet that is more than a step ahead now fails the link.
  void enter(uint64_t epoch, int64_t step);

  // The tag must keep the rules. Waits while the outbox is full. Returns an error if interrupted or if the link fails,
  // before or during the wait.
  Status send(const PacketTag& tag, std::span<const std::byte> payload, int64_t basis_version);

  // Waits for the packet with this tag and returns its payload. The tag must be of the entered epoch, not of an older
  // step, not more than a step ahead, and not received before. Returns an error
  // - if interrupted, even if the packet is there;
  // - if the link has failed before the packet arrived: the link's reason;
  // - if the packet has another basis version: this fails the link.
  Result<std::string> receive(const PacketTag& tag, int64_t basis_version);

  // Fails the link with this reason, for both ends. Does not wait.
  void close(const std::string& reason);

  // Ends all older epochs: every send() and receive() of theirs, waiting or later, returns an error with the reason.
  // The highest epoch counts, with its first reason.
  void interrupt(uint64_t epoch, const std::string& reason);

  PacketMeter meter() const;

  // Fails the link because a payload from receive() cannot be used. The error says who sent it, and why it is refused.
  Error refuse(const Error& why);

  // True if the link has failed: the other end broke it or sent what is refused, or this end has closed it.
  bool failed() const;

 private:
  struct Interrupt {
    uint64_t epoch = 0;
    std::string reason;
  };
  struct Outgoing {
    TimePoint due;
    wire::Frame frame;
  };

  void run_sender();
  void run_receiver();
  // Waits until the next frame is due; nullopt when there is nothing more to write.
  std::optional<wire::Frame> next_outgoing();
  // Waits until one more packet may be taken from the link.
  void wait_for_room();
  void take(wire::Frame frame);
  Status accept(const PacketTag& tag, wire::Packet packet);
  void fail(const std::string& reason);
  // Called by a thread that no longer uses the link.
  void end_direction();
  // With the mutex held:
  std::optional<Error> interruption(uint64_t epoch) const;

  const std::unique_ptr<Link> link_;
  const PacketRules rules_;
  const size_t most_outgoing_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // when anything below changes
  PacketShelf shelf_;
  std::optional<Interrupt> interrupt_;
  ShapePlan line_;
  std::deque<Outgoing> outbox_;
  std::optional<std::string> failure_;
  bool owes_last_word_ = false;  // this end has closed and not said so yet
  bool read_ended_ = false;
  bool write_failed_ = false;
  int directions_ = 2;  // threads that use the link
  bool ended_ = false;  // no thread uses the link, and it is finished

  std::thread sender_;
  std::thread receiver_;
};

}  // namespace thinpipe
