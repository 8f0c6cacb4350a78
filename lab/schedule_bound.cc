#include "lab/schedule_bound.h"

#include <algorithm>
#include <deque>

#include "base/result.h"

namespace thinpipe {

double schedule_bound_s(const std::vector<std::vector<Pass>>& stages, const ScheduleTimes& times) {
  struct Line {
    double free_s = 0;
    std::deque<double> arrivals_s;
  };
  const size_t count = stages.size();
  std::vector<Line> down(count), up(count);  // up[i] and down[i] connect stages i and i+1; the last of each is unused
  std::vector<double> now_s(count, 0);
  std::vector<size_t> next(count, 0);
  const auto run = [&](size_t stage, bool forward) {
    const bool has_next = stage + 1 < count;
    Line* const in = forward ? (stage > 0 ? &down[stage - 1] : nullptr) : (has_next ? &up[stage] : nullptr);
    Line* const out = forward ? (has_next ? &down[stage] : nullptr) : (stage > 0 ? &up[stage - 1] : nullptr);
    if (in != nullptr) {
      if (in->arrivals_s.empty()) return false;
      now_s[stage] = std::max(now_s[stage], in->arrivals_s.front());
      in->arrivals_s.pop_front();
    }
    now_s[stage] += forward ? times.forward_s[stage] : times.backward_s[stage];
    if (out != nullptr) {
      const auto& link = forward ? times.forward[stage] : times.backward[stage - 1];
      out->free_s = std::max(out->free_s, now_s[stage]) + link.transfer_s;
      out->arrivals_s.push_back(out->free_s + link.delay_s);
    }
    return true;
  };
  // Stages share only first-in first-out lines, so every possible order of running them gives the same times.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < count; ++stage) {
      while (next[stage] < stages[stage].size() && run(stage, stages[stage][next[stage]].forward)) {
        ++next[stage];
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < count; ++stage)
    TP_CHECK(next[stage] == stages[stage].size(), "stage {} never gets past pass {}", stage, next[stage]);
  return *std::max_element(now_s.begin(), now_s.end());
}

}  // namespace thinpipe
