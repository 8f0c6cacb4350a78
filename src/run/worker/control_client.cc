#include "run/worker/control_client.h"

#include <grpcpp/channel.h>

#include <algorithm>

#include "base/log.h"

namespace thinpipe {

void ControlClient::start(Duration heartbeat, ControlCallbacks callbacks) {
  callbacks_ = std::move(callbacks);
  listener_ = std::thread([this] { keep_connected(); });
  heart_ = std::thread([this, heartbeat] { beat(heartbeat); });
}

void ControlClient::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (context_ != nullptr) context_->TryCancel();  // also ends a write that the coordinator does not take
  }
  if (listener_.joinable()) listener_.join();
  if (heart_.joinable()) heart_.join();
}

void ControlClient::say(const control::FromWorker& message) {
  const std::lock_guard lock(write_mutex_);
  if (stream_ != nullptr) stream_->Write(message);
}

void ControlClient::beat(Duration heartbeat) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, heartbeat, [&] { return stopping_; })) {
    lock.unlock();
    callbacks_.tick();
    lock.lock();
  }
}

void ControlClient::keep_connected() {
  constexpr Duration kFirstWait = std::chrono::milliseconds(20), kLongestWait = std::chrono::seconds(1);
  Duration wait = kFirstWait;
  while (true) {
    if (attend()) wait = kFirstWait;
    if (!callbacks_.disconnected()) return;
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, wait, [&] { return stopping_; })) return;
    wait = std::min(wait * 2, kLongestWait);
  }
}

bool ControlClient::attend() {
  line_.hang_up();  // dial again each time: a failed channel waits before it retries
  const auto stub = line_.stub();
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    context_ = &context;
  }
  const auto stream = stub->Attend(&context);
  {
    const std::lock_guard lock(write_mutex_);
    stream->Write(callbacks_.connected());
    stream_ = stream.get();
  }
  bool useful = false;
  control::ToWorker message;
  while (stream->Read(&message)) {
    useful = true;
    callbacks_.received(message);
  }
  {
    const std::lock_guard lock(write_mutex_);
    stream_ = nullptr;
  }
  context.TryCancel();
  const auto status = stream->Finish();
  {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }
  log_debug("the line to {} ended: {}", line_.where(), status.error_message());
  return useful;
}

}  // namespace thinpipe
