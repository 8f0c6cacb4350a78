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

// How many calls a caller may make without waiting. Knows only the time that it is given.
class CallBudget {
 public:
  static constexpr double kBurst = 100, kPerSecond = 50;
  static constexpr size_t kMostCallers = 4096;

  // False: too many; the caller has to wait. A cheap call costs less than 1.
  bool take(const std::string& caller, double cost, TimePoint now);
  size_t remembered() const { return callers_.size(); }

 private:
  struct Bucket {
    double tokens = 0;
    TimePoint at{};
  };
  std::map<std::string, Bucket> callers_;
};

// Slows a stream of messages down to kPerSecond, by letting its reader wait. A worker sends a few messages per step.
class Pace {
 public:
  static constexpr int64_t kPerSecond = 200;

  explicit Pace(const Clock& clock) : clock_(clock), second_(clock.now()) {}
  void note_message();

 private:
  const Clock& clock_;
  TimePoint second_;
  int64_t count_ = 0;
};

}  // namespace thinpipe
