// A worker's line to its coordinator: the Attend stream, dialled again whenever it breaks. Messages sent while the line
// is down are lost; the first message of the next connection repeats what matters. worker_core.h makes all decisions.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "proto/control.grpc.pb.h"
#include "run/coordinator_line.h"

namespace thinpipe {

// The client's two threads call these.
struct ControlCallbacks {
  std::function<control::FromWorker()> connected;  // returns the first message
  std::function<bool()> disconnected;              // returns whether to dial again
  std::function<void(const control::ToWorker&)> received;
  std::function<void()> tick;  // every heartbeat, even when the line is down
};

class ControlClient {
 public:
  explicit ControlClient(CoordinatorAccess coordinator) : line_(std::move(coordinator)) {}
  ~ControlClient() { stop(); }
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  void start(Duration heartbeat, ControlCallbacks callbacks);
  // Hangs up and waits for both threads. Makes no callbacks after that.
  void stop();
  // From any thread, at any time.
  void say(const control::FromWorker& message);

 private:
  void keep_connected();
  // Serves one connection until it ends. Returns whether a message came.
  bool attend();
  void beat(Duration heartbeat);

  CoordinatorLine line_;
  ControlCallbacks callbacks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the current connection; null if there is none
  // Guards the stream and is held while a message is written, which lasts as long as the coordinator lets it wait. So
  // stop() does not take it.
  std::mutex write_mutex_;
  grpc::ClientReaderWriter<control::FromWorker, control::ToWorker>* stream_ = nullptr;

  std::thread listener_, heart_;
};

}  // namespace thinpipe
