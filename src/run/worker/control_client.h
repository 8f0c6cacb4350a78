// A worker's line to its coordinator: the Attend stream, kept up over failures of the network and of the coordinator
// itself. What the coordinator says lands in a queue; what the worker says is lost when the line is down, which the
// protocol bears: after every new connection Hello tells all that matters.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "proto/control.grpc.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

struct ControlClientOptions {
  CoordinatorAccess coordinator;
  Duration heartbeat = std::chrono::seconds(1);
  Duration patience = std::chrono::minutes(10);  // without a connection for so long, the worker gives up
};

class ControlClient {
 public:
  // hello: makes the Hello of a new connection, on the client's thread. urgent: sees every message before it is queued,
  // on the same thread.
  ControlClient(ControlClientOptions options, std::function<control::Hello()> hello,
                std::function<void(const control::ToWorker&)> urgent);
  ~ControlClient();

  // Waits for the next message; an error when the coordinator could not be reached for too long, or refused.
  Result<control::ToWorker> next();
  void say(const control::FromWorker& message);

 private:
  void run();
  // One connection, until it ends. Whether anything came of it.
  bool attend();
  void beat();

  const ControlClientOptions options_;
  CoordinatorLine line_;
  const std::function<control::Hello()> hello_;
  const std::function<void(const control::ToWorker&)> urgent_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<control::ToWorker> queue_;
  std::optional<std::string> failure_;
  bool leaving_ = false;
  // Of the connection that is up; null when none is. Writes go through write_mutex_.
  std::mutex write_mutex_;
  grpc::ClientContext* context_ = nullptr;
  grpc::ClientReaderWriter<control::FromWorker, control::ToWorker>* stream_ = nullptr;

  std::thread thread_, heart_;
};

}  // namespace thinpipe
