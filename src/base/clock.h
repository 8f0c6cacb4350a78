// Time as an argument. Code that waits or measures takes a Clock, so that tests move time by hand and never sleep.
#pragma once

#include <atomic>
#include <chrono>

namespace thinpipe {

using Duration = std::chrono::nanoseconds;
// Monotonic time since an arbitrary start; comparable only within one Clock.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// Stands still until advance() is called; any thread may call both.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(now_ns_.load())); }
  void advance(Duration by) { now_ns_ += by.count(); }

 private:
  std::atomic<Duration::rep> now_ns_{0};
};

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace thinpipe
