#include "pipeline/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/units.h"

namespace thinpipe {
namespace {

constexpr size_t kRecentSteps = 16;
constexpr int kAllDetails = 4;

}  // namespace

Progress::Progress(ProgressPlan plan, std::FILE* out, bool live, const Clock& clock)
    : plan_(plan), clock_(clock), out_(out, live, clock), last_(clock.now()), last_step_(plan.first_step) {}

void Progress::note_speed(const StepReport& report) {
  const auto now = clock_.now();
  const int64_t steps = report.step - last_step_;
  if (steps > 0) tokens_per_step_ = report.tokens / steps;
  if (report.tokens > 0) recent_.push_back(seconds(now - last_) / static_cast<double>(report.tokens));
  if (recent_.size() > kRecentSteps) recent_.pop_front();
  last_ = now;
  last_step_ = report.step;
}

double Progress::seconds_per_token() const {
  if (recent_.empty()) return 0;
  std::vector<double> sorted(recent_.begin(), recent_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::string Progress::line(const StepReport& report, int detail) const {
  const double token_s = seconds_per_token();
  const double rate = token_s > 0 ? 1 / token_s : 0;
  const double left = token_s * static_cast<double>(tokens_per_step_ * (plan_.total_steps - report.step));
  auto text = fmt::format("step {}/{}  loss {:.4f}", report.step, plan_.total_steps, report.loss);
  if (detail >= 1) text += fmt::format("  {:.0f} tokens/s", rate);
  if (plan_.cuts > 0 && report.bytes > 0 && report.tokens > 0) {
    const double per_token = static_cast<double>(report.bytes) / static_cast<double>(report.tokens * plan_.cuts);
    if (detail >= 2) text += fmt::format("  {:.1f} bytes/token", per_token);
    if (detail >= 3) text += fmt::format(" ({:.1f}x below fp32)", 8.0 * static_cast<double>(plan_.d) / per_token);
    if (detail >= 4 && plan_.rate_bits_per_s > 0) {
      // The bytes are of both directions, the rate is of each.
      const double use = per_token / 2 * 8 * rate / static_cast<double>(plan_.rate_bits_per_s);
      text += fmt::format("  link {:.1f}% used", 100 * use);
    }
  }
  return text + fmt::format("  ETA {}", format_duration(std::chrono::seconds(std::llround(left))));
}

void Progress::evaluation(int64_t step, int64_t done, int64_t sequences) {
  if (out_.is_due()) out_.show(fmt::format("step {}: validating, {} of {} sequences", step, done, sequences));
}

void Progress::wait(const std::string& line) {
  if (out_.is_due()) out_.show(line);
}

void Progress::step(const StepReport& report) {
  note_speed(report);
  const bool edge = report.step == 1 || report.step == plan_.total_steps;
  if (!edge && !out_.is_due()) return;
  int detail = kAllDetails;
  while (detail > 0 && line(report, detail).size() > out_.room()) --detail;
  out_.show(line(report, detail));
}

}  // namespace thinpipe
