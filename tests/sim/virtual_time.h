// Time and chance of a simulation: a clock that moves from event to event, and dice that follow from the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"

namespace thinpipe::sim {

// An invariant does not hold.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Dice {
 public:
  Dice(uint64_t seed, std::string_view name) : rng_(seed, name) {}
  uint64_t bits() { return rng_.bits64(drawn_++); }
  uint64_t below(uint64_t bound) { return bits() % bound; }
  bool one_in(uint64_t count) { return below(count) == 0; }
  Duration between(Duration least, Duration most) {
    return least + Duration(static_cast<int64_t>(below(static_cast<uint64_t>((most - least).count()) + 1)));
  }

 private:
  CounterRng rng_;
  uint64_t drawn_ = 0;
};

class Events final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void at(TimePoint time, std::function<void()> what) {
    queue_.push({std::max(time, now_), ++pushed_, std::move(what)});
  }
  void after(Duration delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }
  // Moves to the next event and lets it happen. False if there is none.
  bool happen() {
    if (queue_.empty()) return false;
    const auto next = std::move(const_cast<Event&>(queue_.top()));  // its place in the queue does not depend on `what`
    queue_.pop();
    now_ = next.time;
    ++happened_;
    next.what();
    return true;
  }
  uint64_t happened() const { return happened_; }

 private:
  struct Event {
    TimePoint time;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const { return std::pair(other.time, other.number) < std::pair(time, number); }
  };

  TimePoint now_{};
  uint64_t pushed_ = 0, happened_ = 0;
  std::priority_queue<Event> queue_;
};

}  // namespace thinpipe::sim
