#include "run/worker/control_client.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>

#include <algorithm>

#include "base/log.h"

namespace thinpipe {

ControlClient::ControlClient(ControlClientOptions options, std::function<control::Hello()> hello,
                             std::function<void(const control::ToWorker&)> urgent)
    : options_(std::move(options)), line_(options_.coordinator), hello_(std::move(hello)), urgent_(std::move(urgent)) {
  thread_ = std::thread([this] { run(); });
  heart_ = std::thread([this] { beat(); });
}

ControlClient::~ControlClient() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(write_mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
  heart_.join();
}

Result<control::ToWorker> ControlClient::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || !queue_.empty(); });
  if (queue_.empty()) return Error{*failure_};
  auto message = std::move(queue_.front());
  queue_.pop_front();
  return message;
}

void ControlClient::say(const control::FromWorker& message) {
  const std::lock_guard lock(write_mutex_);
  if (stream_ != nullptr) stream_->Write(message);
}

void ControlClient::beat() {
  control::FromWorker message;
  message.mutable_heartbeat();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.heartbeat, [&] { return leaving_; })) {
    lock.unlock();
    say(message);
    lock.lock();
  }
}

void ControlClient::run() {
  const SystemClock clock;
  auto last_contact = clock.now();
  constexpr Duration kFirstWait = std::chrono::milliseconds(20), kLongestWait = std::chrono::seconds(1);
  Duration wait = kFirstWait;
  while (true) {
    const bool useful = attend();
    std::unique_lock lock(mutex_);
    if (leaving_ || failure_) return;
    if (useful) {
      last_contact = clock.now();
      wait = kFirstWait;
    }
    if (clock.now() - last_contact > options_.patience) {
      failure_ = fmt::format("the coordinator at {} could not be reached for {:.0f} s", line_.where(),
                             seconds(clock.now() - last_contact));
      changed_.notify_all();
      return;
    }
    changed_.wait_for(lock, wait, [&] { return leaving_; });
    wait = std::min(wait * 2, kLongestWait);
  }
}

bool ControlClient::attend() {
  line_.hang_up();  // each attempt dials anew: a channel that failed waits before it tries again
  const auto stub = line_.stub();
  grpc::ClientContext context;
  context.set_wait_for_ready(false);
  const auto stream = stub->Attend(&context);
  control::FromWorker hello;
  {
    const std::lock_guard lock(write_mutex_);
    *hello.mutable_hello() = hello_();
    stream->Write(hello);
    context_ = &context;
    stream_ = stream.get();
  }
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) context.TryCancel();
  }
  bool useful = false;
  control::ToWorker message;
  while (stream->Read(&message)) {
    useful = true;
    const std::lock_guard lock(mutex_);
    if (message.has_refuse()) {
      failure_ = fmt::format("the coordinator refused: {}", message.refuse().reason());
      changed_.notify_all();
      break;
    }
    urgent_(message);
    queue_.push_back(message);
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(write_mutex_);
    context_ = nullptr;
    stream_ = nullptr;
  }
  context.TryCancel();
  const auto status = stream->Finish();
  log_debug("the line to {} ended: {}", line_.where(), status.error_message());
  return useful;
}

}  // namespace thinpipe
