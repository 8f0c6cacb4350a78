#include "net/shaped_link.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace thinpipe {
namespace {

// Rounded to a nanosecond.
Duration fraction(double of_ns) { return Duration(std::llround(of_ns)); }

class ShapedLink final : public Link {
 public:
  ShapedLink(std::unique_ptr<Link> inner, const LinkShape& shape, int64_t capacity, uint64_t seed, Duration flush_time)
      : inner_(std::move(inner)),
        capacity_(static_cast<size_t>(capacity)),
        flush_time_(flush_time),
        plan_(shape, seed) {
    line_ = std::thread([this] { run_line(); });
  }

  ~ShapedLink() override {
    close("the other end of the link is gone");
    // The line's thread may still be in send(), if it was not this end that closed.
    inner_->close("the other end of the link is gone");
    line_.join();
  }

  Status send(std::vector<std::byte> message) override {
    TP_CHECK(capacity_ > 0, "a message of {} bytes on a direction without room for any", message.size());
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [&] { return closed_ || held_.size() < capacity_; });
    if (closed_) return Error{*closed_};
    const auto arrival = plan_.arrival(std::chrono::steady_clock::now(), message.size());
    held_.push_back({arrival, std::move(message)});
    line_changed_.notify_one();
    return {};
  }

  Result<std::vector<std::byte>> receive() override {
    auto message = inner_->receive();
    if (!message) inner_closed(message.error().message);
    return message;
  }

  void close(std::string reason) override {
    {
      std::unique_lock lock(mutex_);
      if (closed_) return;
      set_closed(reason);
      flushed_.wait_for(lock, flush_time_, [&] { return line_ended_; });
    }
    inner_->close(std::move(reason));
  }

 private:
  struct Held {
    TimePoint arrival;
    std::vector<std::byte> message;
  };

  void run_line() {
    while (auto message = next_arrival()) {
      const auto sent = inner_->send(std::move(*message));
      if (!sent.ok()) inner_closed(sent.error().message);
    }
    const std::lock_guard lock(mutex_);
    line_ended_ = true;
    flushed_.notify_all();
  }

  // Waits for it; at once when the link is closed.
  std::optional<std::vector<std::byte>> next_arrival() {
    std::unique_lock lock(mutex_);
    line_changed_.wait(lock, [&] { return closed_ || !held_.empty(); });
    if (held_.empty()) return std::nullopt;
    line_changed_.wait_until(lock, held_.front().arrival, [&] { return closed_.has_value(); });
    if (held_.empty()) return std::nullopt;  // the inner link closed, and took them
    auto message = std::move(held_.front().message);
    held_.pop_front();
    has_room_.notify_one();
    return message;
  }

  void inner_closed(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    held_.clear();
    set_closed(reason);  // also over one of ours: the inner link's reason is the one both ends have
  }

  // With the mutex held.
  void set_closed(const std::string& reason) {
    closed_ = reason;
    line_changed_.notify_all();
    has_room_.notify_all();
  }

  const std::unique_ptr<Link> inner_;
  const size_t capacity_;
  const Duration flush_time_;
  std::mutex mutex_;
  std::condition_variable line_changed_;  // the line's thread waits
  std::condition_variable has_room_;      // send() waits
  std::condition_variable flushed_;       // close() waits
  std::optional<std::string> closed_;     // the reason
  bool line_ended_ = false;
  std::deque<Held> held_;
  ShapePlan plan_;
  std::thread line_;
};

}  // namespace

TimePoint ShapePlan::arrival(TimePoint now, uint64_t bytes) {
  const auto start = std::max(now, line_free_);
  const double bits = 8.0 * static_cast<double>(bytes);
  line_free_ = start;
  if (shape_.rate_bits_per_s > 0) line_free_ += fraction(bits * 1e9 / static_cast<double>(shape_.rate_bits_per_s));
  const auto late = fraction(static_cast<double>(shape_.jitter.count()) * jitter_.uniform(messages_++));
  last_arrival_ = std::max(last_arrival_, line_free_ + shape_.delay + late);
  return last_arrival_;
}

std::unique_ptr<Link> shape_link(std::unique_ptr<Link> inner, const LinkShape& shape, int64_t capacity, uint64_t seed,
                                 Duration flush_time) {
  TP_CHECK(capacity >= 0, "a capacity of {} messages", capacity);
  return std::make_unique<ShapedLink>(std::move(inner), shape, capacity, seed, flush_time);
}

}  // namespace thinpipe
