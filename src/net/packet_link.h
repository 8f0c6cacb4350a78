// One end of a boundary between two stages, in two processes or in one, above any Link: sends and receives packets by
// their tags, keeps what comes early, drops what comes late or again, and fails on what no honest neighbour sends.
// Stages learn of commits and aborts at different times; this is where the difference is made up for.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "net/link.h"
#include "net/link_shape.h"
#include "net/packet.h"

namespace thinpipe {

struct PacketMeter {
  uint64_t dropped_old = 0;  // of an older epoch or step, on arrival or when enter() made them old
  uint64_t dropped_repeated = 0;
};

// Two threads of its own: a sender and a receiver.
//
// send() puts a packet into the outbox, which holds M + 1 of them: all that a step sends one way, and its end. The
// sender writes each to the link when it is due: at once, or when it would have arrived on the line that `shape`
// describes, which carries whole frames.
//
// The receiver takes what comes, whatever the compute thread does, so in a step the other end's packets wait for the
// network only (an evaluation's: see below). What arrives, when this end is at (epoch, step):
//
//   an older epoch, or an older step of the epoch  dropped
//   a tag that is held or was received             dropped
//   the epoch; the step or the next one            held until received or old
//   the epoch, before its first enter()            held, any step
//   the next epoch                                 held, any step
//   anything further ahead                         the link fails
//   anything packet_tag() refuses                  the link fails
//
// A step's packets are few, and the schedule bounds them; an evaluation may have any number. When kEvaluationAhead of
// those are held, the receiver takes nothing more until one is received or old, and in the end the other end's send()
// waits: so a fast stage does not put a whole evaluation into the memory of a slow one.
//
// Of either epoch at most 2 (2 M + 1) + kEvaluationAhead packets are held, M the rules' microbatches: all that two
// steps have. One more fails the link.
//
// The first failure sticks and ends every wait: close(), a refused packet, the other end's last word, or the end of the
// connection. The end that closes sends what is in its outbox at once, then the reason as its last word, which becomes
// the other end's.
//
// Threads: one compute thread calls enter(), send() and receive(); the rest from any thread. No call may be under way
// when it is destroyed.
class PacketLink {
 public:
  static constexpr size_t kEvaluationAhead = 16;

  // At the given epoch, its step not known until enter(). seed: of the shape's jitter.
  PacketLink(std::unique_ptr<Link> link, PacketRules rules, uint64_t epoch, const LinkShape& shape = {},
             uint64_t seed = 0);
  // Closes, and gives what is in the outbox half a second to leave.
  ~PacketLink();
  PacketLink(const PacketLink&) = delete;
  PacketLink& operator=(const PacketLink&) = delete;

  // The compute thread moves on, never back: a later epoch with any step, or the same with the same or a later step.
  // What is older now is dropped. A held packet that is more than a step ahead now fails the link.
  void enter(uint64_t epoch, int64_t step);

  // The tag must keep the rules. Waits while the outbox is full. An error when interrupted or when the link has failed,
  // also while it waits.
  Status send(const PacketTag& tag, std::span<const std::byte> payload, int64_t basis_version);

  // Waits for the packet with this tag, of the epoch entered, not of an older step nor more than a step ahead, and not
  // received before, and returns its payload. An error
  // - when interrupted, even if the packet is there;
  // - when the link has failed and the packet had not arrived before: its reason;
  // - when the packet's basis version is not this one: the packet is gone then, and the link has not failed.
  Result<std::string> receive(const PacketTag& tag, int64_t basis_version);

  // The link has failed with this reason, for both ends. Does not wait.
  void close(const std::string& reason);

  // The epoch is to be left for this one: every send() and receive() of older epochs, those that wait too, is an error
  // with the reason. The highest epoch counts, and of that the first reason.
  void interrupt(uint64_t epoch, const std::string& reason);

  PacketMeter meter() const;

  // Of what receive() returned and nobody can use: who sent it, and why it is refused.
  Error refusal(const Error& why) const;

 private:
  struct Interrupt {
    uint64_t epoch = 0;
    std::string reason;
  };
  struct Outgoing {
    TimePoint due;
    wire::Frame frame;
  };
  using Held = std::map<PacketTag, wire::Packet>;

  void run_sender();
  void run_receiver();
  // Waits for the next frame to be due; none when there is nothing more to write.
  std::optional<wire::Frame> next_outgoing();
  // Until one more packet may be taken from the link.
  void wait_for_room();
  void take(wire::Frame frame);
  // The packet is in its place, or dropped; or the reason why it may not be here.
  Status accept(const PacketTag& tag, wire::Packet packet);
  void fail(const std::string& reason);
  // A thread does not use the link any more.
  void end_direction();
  // With the mutex held:
  std::optional<Error> interruption(uint64_t epoch) const;
  void leave_epoch(uint64_t epoch);
  std::optional<int64_t> step_too_far_ahead() const;

  const std::unique_ptr<Link> link_;
  const PacketRules rules_;
  const size_t most_held_;  // per epoch
  const size_t most_outgoing_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // of anything below
  uint64_t epoch_;
  std::optional<int64_t> step_;
  Held held_;       // of epoch_
  Held held_next_;  // of epoch_ + 1
  std::set<PacketTag> received_;
  std::optional<Interrupt> interrupt_;
  PacketMeter meter_;
  ShapePlan line_;
  std::deque<Outgoing> outbox_;
  std::optional<std::string> failure_;
  bool owes_last_word_ = false;  // closed by this end, and has not said so yet
  bool read_ended_ = false;
  bool write_failed_ = false;
  int directions_ = 2;  // threads that use the link
  bool ended_ = false;  // none, and it is finished

  std::thread sender_;
  std::thread receiver_;
};

}  // namespace thinpipe
