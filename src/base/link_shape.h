// What the config says about one direction of a line, and what net's ShapePlan makes messages wait for.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace thinpipe {

// One direction of a line. Default: no slower than the real line.
struct LinkShape {
  uint64_t rate_bits_per_s = 0;  // 0: unlimited
  Duration delay{0};
  Duration jitter{0};  // on top of the delay, uniform between 0 and this

  bool operator==(const LinkShape&) const = default;
};

}  // namespace thinpipe
