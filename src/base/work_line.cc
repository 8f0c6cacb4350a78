#include "base/work_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"

namespace thinpipe {
namespace {

constexpr Duration kLeastMeasured = std::chrono::milliseconds(500);  // less says little about the rest
const SystemClock system_clock;

}  // namespace

WorkLine::WorkLine(std::string what, std::string things, uint64_t total)
    : WorkLine(std::move(what), std::move(things), total, stderr, ::isatty(STDERR_FILENO) == 1, system_clock) {}

WorkLine::WorkLine(std::string what, std::string things, uint64_t total, std::FILE* out, bool live, const Clock& clock)
    : what_(std::move(what)),
      things_(std::move(things)),
      total_(total),
      live_(live),
      clock_(clock),
      start_(clock.now()),
      line_(out, live, clock) {
  show();
}

void WorkLine::add(uint64_t count) {
  done_ = std::min(total_, done_ + count);
  if (done_ == total_ || line_.is_due()) show();
}

void WorkLine::show() {
  if (live_) line_.show(text());
}

std::string WorkLine::text() const {
  const auto took = clock_.now() - start_;
  std::string left;
  if (done_ > 0 && done_ < total_ && took >= kLeastMeasured) {
    const double left_s = seconds(took) * static_cast<double>(total_ - done_) / static_cast<double>(done_);
    left = fmt::format(", about {} left", format_duration(std::chrono::seconds(std::llround(std::ceil(left_s)))));
  }
  const auto whole = fmt::format("{}: {} of {} {}{}", what_, done_, total_, things_, left);
  if (whole.size() <= line_.room()) return whole;
  return fmt::format("{}/{}{}", done_, total_, left);  // what matters most on a narrow terminal
}

}  // namespace thinpipe
