// A slower line than the one there is, for experiments on one machine: a Link whose sends take as long as they would on
// a line of a given rate, delay and jitter. Shapes what its own end sends; shape both ends for both directions.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/rng.h"
#include "net/link.h"

namespace thinpipe {

struct LinkShape {
  uint64_t rate_bits_per_s = 0;  // 0: unlimited
  Duration delay{0};
  Duration jitter{0};  // on top of the delay, uniform between 0 and this

  bool operator==(const LinkShape&) const = default;
};

// When messages arrive. A message starts when it is queued, or when the line has finished the one before; it occupies
// the line for bytes * 8 / rate; it arrives delay and jitter after that, but never before the one before. Pipelined: a
// delayed message does not occupy the line.
class ShapePlan {
 public:
  ShapePlan(const LinkShape& shape, uint64_t seed) : shape_(shape), jitter_(seed, "link jitter") {}

  // Of the next message, queued now. The times of the calls must not decrease.
  TimePoint arrival(TimePoint now, uint64_t bytes);

 private:
  LinkShape shape_;
  CounterRng jitter_;
  uint64_t messages_ = 0;
  TimePoint line_free_{};
  TimePoint last_arrival_{};
};

// Holds every message until it arrives, up to capacity of them, then passes it to the inner link, which must have room
// for as many. Same seed, same jitter.
//
// A close sends at once what is held, and then closes the inner link; it may take `flush_time` when the inner link has
// no room, and what has not left by then is lost. A send() that waits hears of the other end's close when the next
// message would arrive.
std::unique_ptr<Link> shape_link(std::unique_ptr<Link> inner, const LinkShape& shape, int64_t capacity, uint64_t seed,
                                 Duration flush_time = std::chrono::milliseconds(500));

}  // namespace thinpipe
