#include "net/shape_plan.h"

#include <algorithm>
#include <cmath>

namespace thinpipe {
namespace {

// Rounded to a nanosecond.
Duration fraction(double of_ns) { return Duration(std::llround(of_ns)); }

}  // namespace

TimePoint ShapePlan::arrival(TimePoint now, uint64_t bytes) {
  const double bits = 8.0 * static_cast<double>(bytes);
  line_free_ = std::max(now, line_free_);
  if (shape_.rate_bits_per_s > 0) line_free_ += fraction(bits * 1e9 / static_cast<double>(shape_.rate_bits_per_s));
  const auto late = fraction(static_cast<double>(shape_.jitter.count()) * jitter_.uniform(messages_++));
  last_arrival_ = std::max(last_arrival_, line_free_ + shape_.delay + late);
  return last_arrival_;
}

}  // namespace thinpipe
