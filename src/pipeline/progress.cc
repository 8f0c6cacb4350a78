#include "pipeline/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace thinpipe {

Progress::Progress(ProgressPlan plan, std::FILE* out, bool live, const Clock& clock)
    : plan_(plan), clock_(clock), out_(out, live, clock), start_(clock.now()) {}

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
      // The bytes are of both directions, the rate is of each.
      const double use = per_token / 2 * 8 * rate / static_cast<double>(plan_.rate_bits_per_s);
      link += fmt::format("  link {:.1f}% used", 100 * use);
    }
  }
  return fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s{}  ETA {}", report.step, plan_.total_steps, report.loss,
                     rate, link, format_duration(std::chrono::seconds(std::llround(left))));
}

void Progress::evaluation(int64_t step, int64_t done, int64_t sequences) {
  if (out_.is_due()) out_.show(fmt::format("step {}: validating, {} of {} sequences", step, done, sequences));
}

void Progress::step(const StepReport& report) {
  tokens_ += report.tokens;
  const bool edge = report.step == 1 || report.step == plan_.total_steps;
  if (edge || out_.is_due()) out_.show(line(report));
}

}  // namespace thinpipe
