// Keeps a flood of refused callers from filling the event log: so many a second are written down, the rest counted.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"

namespace thinpipe {

class RefusalLog {
 public:
  static constexpr int kPerSecond = 10;

  // The line to write; none when there were enough in this second.
  std::optional<std::string> note(const std::string& reason, TimePoint now) {
    if (now - second_ >= std::chrono::seconds(1)) {
      second_ = now;
      written_ = 0;
    }
    if (written_ >= kPerSecond) {
      ++unwritten_;
      return std::nullopt;
    }
    ++written_;
    if (unwritten_ == 0) return reason;
    return fmt::format("{} (and {} more before)", reason, std::exchange(unwritten_, 0));
  }

 private:
  TimePoint second_{};
  int written_ = 0;
  int64_t unwritten_ = 0;
};

}  // namespace thinpipe
