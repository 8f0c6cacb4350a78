#include "pipeline/schedule.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace thinpipe {

std::vector<Pass> passes(ScheduleKind kind, size_t stage, int64_t stages, int64_t microbatches,
                         const std::vector<int64_t>& warmup) {
  TP_CHECK(static_cast<int64_t>(stage) < stages && microbatches >= 1, "stage {} of {}, {} microbatches", stage, stages,
           microbatches);
  TP_CHECK(warmup.empty() || static_cast<int64_t>(warmup.size()) == stages, "{} warm-up depths for {} stages",
           warmup.size(), stages);
  TP_CHECK(std::is_sorted(warmup.rbegin(), warmup.rend()) && (warmup.empty() || warmup.back() >= 0),
           "warm-up depths {} are negative or increase", fmt::join(warmup, ", "));
  const int64_t depth = kind == ScheduleKind::kGpipe ? microbatches  // 1f1b with a warm-up of the whole step
                        : warmup.empty()             ? stages - 1 - static_cast<int64_t>(stage)
                                                     : warmup[stage];
  const int64_t ahead = std::min(depth, microbatches);
  std::vector<Pass> order;
  for (int64_t m = 0; m < ahead; ++m) order.push_back({true, m});
  for (int64_t m = 0; m < microbatches; ++m) {
    if (m + ahead < microbatches) order.push_back({true, m + ahead});
    order.push_back({false, m});
  }
  return order;
}

std::vector<int64_t> covering_warmup(int64_t stages, int64_t microbatches, double compute_s, double hop_s) {
  TP_CHECK(stages >= 1 && microbatches >= 1, "warm-up for {} stages, {} microbatches", stages, microbatches);
  TP_CHECK(compute_s > 0 && hop_s >= 0, "warm-up for {} s of compute and {} s of link", compute_s, hop_s);
  std::vector<int64_t> warmup;
  for (int64_t hops = stages - 1; hops >= 0; --hops) {
    // A quotient that is whole except for rounding must not cost the memory of one more microbatch.
    constexpr double kSlack = 1 - 1e-12;
    const double cover = std::ceil(2 * static_cast<double>(hops) * hop_s / compute_s * kSlack);
    warmup.push_back(
        static_cast<int64_t>(std::min(static_cast<double>(hops) + cover, static_cast<double>(microbatches))));
  }
  return warmup;
}

}  // namespace thinpipe
