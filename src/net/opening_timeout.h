// A bound on the opening of a call that is to live on: a deadline of gRPC's would end the whole stream, not its
// opening. Inside net/ only.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace thinpipe {

// Calls cancel, from a thread of its own, unless expired() is asked in time. What cancel uses must outlive it.
class OpeningTimeout {
 public:
  OpeningTimeout(std::function<void()> cancel, Duration timeout)
      : watch_([this, cancel = std::move(cancel), timeout](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          opened_.wait_for(lock, stop, timeout, [] { return false; });
          if (stop.stop_requested()) return;
          expired_ = true;
          cancel();
        }) {}

  // Ends the watch; whether it had cancelled.
  bool expired() {
    watch_.request_stop();
    watch_.join();
    return expired_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any opened_;
  bool expired_ = false;
  std::jthread watch_;
};

}  // namespace thinpipe
