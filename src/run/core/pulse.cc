#include "run/core/pulse.h"

#include <algorithm>
#include <set>

namespace thinpipe {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

// Heartbeats come every half second. So many messages show what a line is like.
constexpr int64_t kKnownAfter = 8;
constexpr Duration kLeastPatience = milliseconds(1500);
constexpr int kGaps = 3;
// A gap counts half after about 140 messages: more than a minute.
constexpr double kFading = 0.995;

constexpr size_t kKnownSteps = 3;  // before that, a step may take any time
constexpr int kNoticeSteps = 8, kActSteps = 40;
constexpr Duration kLeastNotice = milliseconds(1500), kLeastAct = std::chrono::seconds(15);
constexpr Duration kLeastActOnFiles = minutes(2), kActUnmeasured = minutes(10);
constexpr int kMostActs = 10, kMostActsOnFiles = 100;  // files may be large and lines slow

Duration of_seconds(double time_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time_s));
}

double median(std::deque<double> numbers) {
  const auto middle = numbers.begin() + static_cast<ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

}  // namespace

void note_gap(Pulse& pulse, Duration gap) {
  ++pulse.messages;
  const auto faded = of_seconds(kFading * seconds(pulse.longest_gap));
  pulse.longest_gap = std::max(gap, faded);
}

void note_heartbeat(Pulse& pulse, const control::Heartbeat& heartbeat, TimePoint now) {
  if (heartbeat.done() != pulse.last.done()) {
    pulse.moved = now;
    pulse.noticed = false;
  }
  if (heartbeat.saved() != pulse.last.saved()) pulse.saving_moved = now;
  pulse.last = heartbeat;
}

Duration patience_with(const Pulse& pulse, Duration lease) {
  if (pulse.messages < kKnownAfter) return lease;
  return std::min(lease, std::max(kLeastPatience, kGaps * pulse.longest_gap));
}

Deadlines deadlines_of(Duty duty, const std::deque<double>& step_s, double size) {
  const bool files = duty == Duty::kForming || duty == Duty::kSaving;
  const bool known = step_s.size() >= kKnownSteps;
  if (!known && !files)
    return {Duration::max(), kActUnmeasured, of_seconds(kMostActs * size * seconds(kActUnmeasured))};
  const auto step = of_seconds(known ? median(step_s) : 0);
  Deadlines deadlines{};
  deadlines.notice = files ? Duration::max() : std::max(kLeastNotice, kNoticeSteps * step);
  deadlines.act = std::max(files ? kLeastActOnFiles : kLeastAct, kActSteps * step);
  deadlines.most = files ? kMostActsOnFiles * deadlines.act : of_seconds(kMostActs * size * seconds(deadlines.act));
  return deadlines;
}

Duration time_stuck(const Pulse& pulse, TimePoint began, TimePoint now) {
  if (pulse.last.waits() != control::Heartbeat::NOTHING) return Duration{};
  return now - std::max(began, pulse.moved);
}

std::optional<Stall> find_stall(const std::vector<OnDuty>& crew, TimePoint began, const Deadlines& deadlines,
                                TimePoint now) {
  const bool too_long = now - began > deadlines.most;
  std::set<size_t> stuck, at_links;
  auto last_move = began;
  for (size_t i = 0; i < crew.size(); ++i) {
    const auto& pulse = *crew[i].pulse;
    last_move = std::max(last_move, pulse.moved);
    if (crew[i].finished) continue;
    const auto waits = pulse.last.waits();
    if (waits == control::Heartbeat::NOTHING) {
      if (too_long || time_stuck(pulse, began, now) > deadlines.act) stuck.insert(i);
      continue;
    }
    // The neighbour that it waits for; itself if there is none.
    const bool up = waits == control::Heartbeat::PREVIOUS;
    const size_t other = up ? (i > 0 ? i - 1 : i) : std::min(i + 1, crew.size() - 1);
    const auto back = up ? control::Heartbeat::NEXT : control::Heartbeat::PREVIOUS;
    if (other == i || crew[other].finished || crew[other].pulse->last.waits() == back) at_links.insert({i, other});
  }
  if (!stuck.empty()) return Stall{{stuck.begin(), stuck.end()}, now - last_move};
  const bool all_wait = too_long || now - last_move > deadlines.act;
  if (!all_wait || at_links.empty()) return std::nullopt;
  return Stall{{at_links.begin(), at_links.end()}, now - last_move};
}

std::optional<Stall> find_unsaved(const std::vector<OnDuty>& crew, TimePoint began, const Deadlines& deadlines,
                                  TimePoint now) {
  Stall stall{{}, now - began};
  for (size_t i = 0; i < crew.size(); ++i) {
    if (crew[i].finished) continue;
    const auto still = now - std::max(began, crew[i].pulse->saving_moved);
    if (still > deadlines.act || now - began > deadlines.most) stall.suspects.push_back(i);
  }
  return stall.suspects.empty() ? std::nullopt : std::optional(stall);
}

}  // namespace thinpipe
