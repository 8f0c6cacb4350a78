// A timeout for one part of a call. A gRPC deadline would end the whole stream. Used inside net/ only.
#pragma once

#include <grpcpp/alarm.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace thinpipe {

// Calls cancel once, on a gRPC thread, unless expired() is called before the timeout.
class CallTimeout {
 public:
  CallTimeout(std::function<void()> cancel, Duration timeout) : watch_(std::make_shared<Watch>()) {
    watch_->cancel = std::move(cancel);
    alarm_.Set(std::chrono::system_clock::now() + timeout, [watch = watch_](bool rang) {
      const std::lock_guard lock(watch->mutex);
      if (!rang || !watch->cancel) return;
      watch->expired = true;
      watch->cancel();
    });
  }
  ~CallTimeout() { (void)expired(); }
  CallTimeout(const CallTimeout&) = delete;
  CallTimeout& operator=(const CallTimeout&) = delete;

  // Ends the watch: cancel is not called after this. Returns whether it was.
  bool expired() {
    const std::lock_guard lock(watch_->mutex);
    watch_->cancel = nullptr;
    return watch_->expired;
  }

 private:
  struct Watch {
    std::mutex mutex;
    std::function<void()> cancel;
    bool expired = false;
  };
  std::shared_ptr<Watch> watch_;  // shared with the alarm, which may ring after the rest is destroyed
  grpc::Alarm alarm_;
};

}  // namespace thinpipe
