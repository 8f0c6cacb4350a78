// Ends that must not wait for another end: destroying one is tried in a thread of its own, so that a wait is a failure
// of the test and not a test that never ends.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace thinpipe {

// Ours give up after half a second; this waits much longer. One that is still waiting then is left to itself.
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
