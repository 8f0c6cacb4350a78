// What keeps a flood of calls, messages or refusals cheap for the coordinator: callers wait, and log lines are counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"

namespace thinpipe {

// Keeps a flood of refused callers from filling the event log.
class RefusalLog {
 public:
  static constexpr int kPerSecond = 10;

  // Returns the line to write; nullopt if this second has had enough. The next line says how many were left out.
  std::optional<std::string> note(const std::string& reason, TimePoint now);

 private:
  TimePoint second_{};
  int written_ = 0;
  int64_t left_out_ = 0;
};

// How often a caller may call. Knows only the time that it is given.
class CallBudget {
 public:
  static constexpr double kBurst = 100, kPerSecond = 50;
  static constexpr Duration kLongestWait = std::chrono::seconds(5);
  static constexpr size_t kMostCallers = 4096;

  // How long this call has to wait. Every waiting call makes the caller's next one wait longer, so calls that are made
  // at the same time are not served faster than others. A cheap call costs less than 1.
  Duration take(const std::string& caller, double cost, TimePoint now);
  size_t remembered() const { return callers_.size(); }

 private:
  struct Bucket {
    double tokens = 0;
    TimePoint at{};
  };
  std::map<std::string, Bucket> callers_;
};

// How fast a stream of messages is read. A worker sends a few small messages per step. While the reader waits, the
// line's flow control holds the sender back.
class Pace {
 public:
  static constexpr double kPerSecond = 200, kBurst = 100;
  static constexpr double kBytes = 4096;  // so many bytes cost as much as a message
  static constexpr Duration kFloodAfter = std::chrono::minutes(1);

  explicit Pace(TimePoint now) : at_(now) {}
  // How long the reader has to wait after a message of this size.
  Duration take(size_t bytes, TimePoint now);
  // True if the sender has been above the rate for kFloodAfter without a pause. No honest one is, even if the
  // coordinator has stood still and the heartbeats of minutes wait.
  bool is_flood(TimePoint now) const { return above_since_ && now - *above_since_ > kFloodAfter; }

 private:
  double tokens_ = kBurst;
  TimePoint at_;
  std::optional<TimePoint> above_since_;
};

}  // namespace thinpipe
