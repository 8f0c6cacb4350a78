// One end of a boundary between two stages, in two processes or in one, above any Link: sends and receives packets by
// their tags, keeps what comes early, drops what comes late or again, and fails on what no honest neighbour sends.
// Stages learn of commits and aborts at different times; here is where that is made good.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "net/link.h"
#include "net/packet.h"

namespace thinpipe {

// Payload bytes are those the caller gave; trailers are not in here.
struct PacketMeter {
  uint64_t payload_bytes_sent = 0;
  uint64_t dropped_old = 0;  // of an older epoch or step, on arrival or when enter() made them old
  uint64_t dropped_repeated = 0;
};

// A thread of its own receives, whatever the compute thread does, so in a step the other end's sends wait for the
// network only (an evaluation's: see below). What arrives, when this end is at (epoch, step):
//
//   an older epoch, or an older step of the epoch  dropped
//   a tag that is held or was received             dropped
//   the epoch; the step or the next one            held until received or old
//   the epoch, before its first enter()            held, any step
//   the next epoch                                 held, any step
//   anything further ahead                         the link fails
//   anything parse_packet() refuses                the link fails
//
// Of either epoch at most 2 (2 M + 1 + E) packets are held, M and E the rules' microbatches and eval_microbatches: all
// there are in two steps. One more fails the link. A failure closes the link, so that the other end has the same
// reason.
//
// A step's packets are few, and the schedule bounds them; an evaluation may have any number. When kEvaluationAhead of
// those are held, nothing more is taken from the link until one is received or old, and the other end's send() waits:
// so a fast stage does not put a whole evaluation into the memory of a slow one.
//
// Threads: one compute thread calls enter(), send() and receive(); the rest from any thread. No call may be under way
// when it is destroyed.
class PacketLink {
 public:
  static constexpr size_t kEvaluationAhead = 16;

  // At the given epoch, its step not known until enter().
  PacketLink(std::unique_ptr<Link> link, PacketRules rules, uint64_t epoch);
  // Closes the link.
  ~PacketLink();
  PacketLink(const PacketLink&) = delete;
  PacketLink& operator=(const PacketLink&) = delete;

  // The compute thread moves on, never back: a later epoch with any step, or the same with the same or a later step.
  // What is older now is dropped. A held packet that is more than a step ahead now fails the link.
  void enter(uint64_t epoch, int64_t step);

  // The tag must keep the rules, and the payload their size. A payload with kPacketHeaderBytes of spare capacity is not
  // copied. Fails at once when interrupted or when the link has failed. When it waits for room in the Link already,
  // only room or close() ends the wait, not interrupt().
  Status send(const PacketTag& tag, std::vector<std::byte> payload, int64_t rows, int64_t cols, int64_t basis_version);

  // Waits for the packet with this tag, of the epoch entered, not of an older step nor more than a step ahead, and not
  // received before. An error
  // - when interrupted, even if the packet is there;
  // - when the link has failed and the packet had not arrived before: its reason;
  // - when the packet's basis version is not this one: the packet is gone then, and the link has not failed.
  Result<std::vector<std::byte>> receive(const PacketTag& tag, int64_t basis_version);

  // Ends every wait, on both ends, a send()'s for room too; the link has failed with this reason.
  void close(const std::string& reason);

  // The epoch is to be left for this one: a receive() of an older epoch that waits, and every send() and receive() of
  // older epochs from now on, is an error with the reason. The highest epoch counts, and of that the first reason.
  void interrupt(uint64_t epoch, const std::string& reason);

  PacketMeter meter() const;

 private:
  struct Interrupt {
    uint64_t epoch = 0;
    std::string reason;
  };
  using Held = std::map<PacketTag, Packet>;

  void receive_until_closed();
  // Until one more packet may be taken from the link; false: the link has failed.
  bool wait_for_room();
  // The packet is in its place, or dropped; or the reason why it may not be here.
  Status accept(Packet packet);
  void fail(const std::string& reason);
  // With the mutex held:
  std::optional<Error> interruption(uint64_t epoch) const;
  void leave_epoch(uint64_t epoch);
  std::optional<int64_t> step_too_far_ahead() const;

  const std::unique_ptr<Link> link_;
  const PacketRules rules_;
  const size_t most_held_;  // per epoch

  mutable std::mutex mutex_;
  std::condition_variable changed_;   // for receive(): a packet, an interrupt or a failure came
  std::condition_variable has_room_;  // for the receiver thread: a packet was received or dropped, or a failure came
  uint64_t epoch_;
  std::optional<int64_t> step_;
  Held held_;       // of epoch_
  Held held_next_;  // of epoch_ + 1
  std::set<PacketTag> received_;
  std::optional<Interrupt> interrupt_;
  std::optional<std::string> failure_;
  PacketMeter meter_;

  std::thread receiver_;
};

}  // namespace thinpipe
