#include "run/coordinator/call_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace thinpipe {

std::optional<std::string> RefusalLog::note(const std::string& reason, TimePoint now) {
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    written_ = 0;
  }
  if (written_ >= kPerSecond) {
    ++left_out_;
    return std::nullopt;
  }
  ++written_;
  if (left_out_ == 0) return reason;
  return fmt::format("{} ({} more before it are not shown)", reason, std::exchange(left_out_, 0));
}

bool CallBudget::take(const std::string& caller, double cost, TimePoint now) {
  if (callers_.size() >= kMostCallers && !callers_.contains(caller)) {
    std::erase_if(callers_, [&](const auto& one) { return now - one.second.at > std::chrono::minutes(1); });
    if (callers_.size() >= kMostCallers) callers_.clear();
  }
  auto& bucket = callers_.try_emplace(caller, Bucket{kBurst, now}).first->second;
  bucket.tokens = std::min(kBurst, bucket.tokens + kPerSecond * seconds(now - bucket.at));
  bucket.at = now;
  if (bucket.tokens < cost) return false;
  bucket.tokens -= cost;
  return true;
}

void Pace::note_message() {
  if (++count_ < kPerSecond) return;
  const auto next = second_ + std::chrono::seconds(1);
  if (const auto now = clock_.now(); now < next) std::this_thread::sleep_for(next - now);
  second_ = clock_.now();
  count_ = 0;
}

}  // namespace thinpipe
