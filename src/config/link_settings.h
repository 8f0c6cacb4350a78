// [link] as the shaper needs it: what every cut's two directions are slowed down to.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "config/run_config.h"

namespace thinpipe {

struct DirectionSettings {
  uint64_t rate_bits_per_s = 0;  // 0: unlimited
  Duration delay{0};
  Duration jitter{0};

  bool shapes() const { return rate_bits_per_s > 0 || delay.count() > 0 || jitter.count() > 0; }
  bool operator==(const DirectionSettings&) const = default;
};

struct CutSettings {
  DirectionSettings forward;   // from the earlier stage to the later one
  DirectionSettings backward;  // and back

  bool operator==(const CutSettings&) const = default;
};

// One per cut. Each key of [link] is one value for all cuts or a list of as many as there are cuts, separated by
// commas; a value is `both` or `forward/backward`: "80mbit", "80mbit/10mbit", "80mbit, 20mbit/5mbit, unlimited". Throws
// UserError that names key, value and what is right.
std::vector<CutSettings> link_settings(const RunConfig& config);

}  // namespace thinpipe
