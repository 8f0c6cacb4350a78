// Ends whose destruction must not wait for the other end: it runs in a separate thread, so that a wait fails the test
// instead of hanging it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace thinpipe {

// Our ends give up after half a second; this waits much longer, then abandons the thread.
template <class T>
::testing::AssertionResult is_destroyed_soon(std::unique_ptr<T> end) {
  std::promise<void> done;
  const auto destroyed = done.get_future();
  std::thread([end = std::move(end), done = std::move(done)]() mutable {
    end.reset();
    done.set_value();
  }).detach();
  if (destroyed.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "it waits for the other end";
}

}  // namespace thinpipe
