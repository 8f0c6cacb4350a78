// Keeps a worker's certificate fresh: when half of its life is over, a new key is certified by the coordinator, which
// knows the worker by the old one. New connections use the new certificate; those that are up stay up.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "cluster/coordinator_line.h"

namespace thinpipe {

class Renewal {
 public:
  // Starts the thread that watches.
  explicit Renewal(CoordinatorAccess access);

 private:
  void run(const std::stop_token& stop);
  Status renew();

  const CoordinatorAccess access_;
  CoordinatorLine line_;
  std::mutex mutex_;
  std::condition_variable_any sleep_;
  std::jthread thread_;
};

}  // namespace thinpipe
