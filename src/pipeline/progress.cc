#include "pipeline/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace thinpipe {
namespace {

// A terminal can be rewritten often; a log file should stay readable.
constexpr Duration kLiveInterval = std::chrono::milliseconds(100);
constexpr Duration kPlainInterval = std::chrono::seconds(5);

}  // namespace

Progress::Progress(ProgressPlan plan, std::FILE* out, bool live, const Clock& clock)
    : plan_(plan), out_(out), live_(live), clock_(clock), start_(clock.now()) {}

Progress::~Progress() {
  if (line_is_up_) fmt::print(out_, "\n");
}

std::string Progress::line(const StepReport& report) const {
  const double elapsed = seconds(clock_.now() - start_);
  const double rate = elapsed > 0 ? static_cast<double>(tokens_) / elapsed : 0;
  const auto steps_here = static_cast<double>(std::max<int64_t>(1, report.step - plan_.first_step));
  const double left = elapsed / steps_here * static_cast<double>(plan_.total_steps - report.step);
  std::string link;
  if (plan_.cuts > 0 && report.bytes > 0) {
    const double per_token = static_cast<double>(report.bytes) / static_cast<double>(report.tokens * plan_.cuts);
    link = fmt::format("  {:.1f} bytes/token ({:.1f}x below fp32)", per_token,
                       8.0 * static_cast<double>(plan_.d) / per_token);
    if (plan_.rate_bits_per_s > 0) {
      // Both directions share the bytes, each has the rate.
      const double use = per_token / 2 * 8 * rate / static_cast<double>(plan_.rate_bits_per_s);
      link += fmt::format("  link {:.1f}% used", 100 * use);
    }
  }
  return fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s{}  ETA {}", report.step, plan_.total_steps, report.loss,
                     rate, link, format_duration(std::chrono::seconds(std::llround(left))));
}

void Progress::step(const StepReport& report) {
  tokens_ += report.tokens;
  const auto now = clock_.now();
  const bool edge = report.step == 1 || report.step == plan_.total_steps;
  if (!edge && last_print_ && now - *last_print_ < (live_ ? kLiveInterval : kPlainInterval)) return;
  last_print_ = now;
  clear_live_line();
  fmt::print(out_, "{}{}", line(report), live_ ? "" : "\n");
  std::fflush(out_);
  line_is_up_ = live_;
}

void Progress::note(const std::string& text) {
  clear_live_line();
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void Progress::clear_live_line() {
  if (line_is_up_) fmt::print(out_, "\r\033[K");
  line_is_up_ = false;
}

}  // namespace thinpipe
