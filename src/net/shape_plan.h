// Emulates a slower line, for experiments on one machine: computes when a packet would arrive on a line of a given
// rate, delay and jitter. PacketLink holds each packet until then.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/link_shape.h"
#include "base/rng.h"

namespace thinpipe {

// When messages arrive. A message starts when it is queued, or when the line has finished the one before; it occupies
// the line for bytes * 8 / rate; it arrives delay and jitter after that, but never before the previous one. A delayed
// message does not occupy the line. The same seed gives the same jitter.
class ShapePlan {
 public:
  ShapePlan(const LinkShape& shape, uint64_t seed) : shape_(shape), jitter_(seed, "link jitter") {}

  // When the next message, queued now, arrives. `now` must not decrease from call to call.
  TimePoint arrival(TimePoint now, uint64_t bytes);

 private:
  LinkShape shape_;
  CounterRng jitter_;
  uint64_t messages_ = 0;
  TimePoint line_free_{};
  TimePoint last_arrival_{};
};

}  // namespace thinpipe
