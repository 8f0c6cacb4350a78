// The packets that have come from a neighbour and wait for the stage. Decides which packet is held, which is dropped,
// and which one no honest neighbour sends. Knows neither threads nor links: packet_link.h and the simulator (tests/sim)
// use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "base/result.h"
#include "net/packet.h"
#include "proto/frame.pb.h"

namespace thinpipe {

struct PacketMeter {
  uint64_t dropped_old = 0;  // of an older epoch or step, on arrival or after enter()
  uint64_t dropped_repeated = 0;
};

// What happens to an arriving packet when this end is at (epoch, step):
//
//   an older epoch, or an older step of the epoch  dropped
//   a tag that is held or was taken                dropped
//   the epoch; the step or the next one            held until taken or old
//   the epoch, before its first enter()            held, any step
//   a later epoch, or anything further ahead       refused: every epoch has its own links
//   after kMostDropped dropped ones in a step      refused: only a flood has so many
//
// Holds at most 2 (2 M + 1) + kEvaluationAhead packets, which is all that two steps have; one more is refused. So the
// schedule bounds what a neighbour can make this process hold.
class PacketShelf {
 public:
  static constexpr size_t kEvaluationAhead = 16;
  // More than an evaluation that was given up can have on its way.
  static constexpr size_t kMostDropped = 1000;

  // microbatches: M, of a training step. The step is unknown until enter().
  PacketShelf(int64_t microbatches, uint64_t epoch);

  // The stage moves on, never back. Drops packets that are older now. Returns an error if one had come that is more
  // than a step ahead.
  Status enter(uint64_t epoch, int64_t step);
  // Holds the packet or drops it. An error says why it must not be here.
  Status accept(const PacketTag& tag, wire::Packet packet);
  // The tag must not have been taken before. nullopt: it has not come yet.
  std::optional<wire::Packet> take(const PacketTag& tag);

  bool holds(const PacketTag& tag) const { return held_.contains(tag); }
  bool was_taken(const PacketTag& tag) const { return taken_.contains(tag); }
  // True if enough packets of an evaluation wait here.
  bool full_of_evaluation() const;
  size_t size() const { return held_.size(); }
  size_t most() const { return most_; }

  uint64_t epoch() const { return epoch_; }
  const std::optional<int64_t>& step() const { return step_; }
  const PacketMeter& meter() const { return meter_; }

 private:
  Status drop(const PacketTag& tag, uint64_t& meter);

  const size_t most_;
  size_t dropped_ = 0;  // on arrival, since enter()
  uint64_t epoch_;
  std::optional<int64_t> step_;
  std::map<PacketTag, wire::Packet> held_;  // of epoch_
  std::set<PacketTag> taken_;
  PacketMeter meter_;
};

}  // namespace thinpipe
