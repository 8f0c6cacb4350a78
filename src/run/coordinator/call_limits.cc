#include "run/coordinator/call_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace thinpipe {
namespace {

Duration time_for(double tokens, double per_second) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::max(0.0, tokens) / per_second));
}

}  // namespace

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

Duration CallBudget::take(const std::string& caller, double cost, TimePoint now) {
  if (callers_.size() >= kMostCallers && !callers_.contains(caller)) {
    std::erase_if(callers_, [&](const auto& one) { return now - one.second.at > std::chrono::minutes(1); });
    if (callers_.size() >= kMostCallers) callers_.clear();
  }
  auto& bucket = callers_.try_emplace(caller, Bucket{kBurst, now}).first->second;
  bucket.tokens = std::min(kBurst, bucket.tokens + kPerSecond * seconds(now - bucket.at));
  bucket.at = now;
  bucket.tokens = std::max(bucket.tokens - cost, -kPerSecond * seconds(kLongestWait));
  return time_for(-bucket.tokens, kPerSecond);
}

Duration Pace::take(size_t bytes, TimePoint now) {
  tokens_ = std::min(kBurst, tokens_ + kPerSecond * seconds(now - at_));
  at_ = now;
  tokens_ -= 1 + static_cast<double>(bytes) / kBytes;
  if (tokens_ >= 0) {
    above_since_.reset();
  } else if (!above_since_) {
    above_since_ = now;
  }
  return time_for(-tokens_, kPerSecond);
}

}  // namespace thinpipe
