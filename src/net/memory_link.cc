#include "net/memory_link.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

namespace thinpipe {
namespace {

// One direction. Guarded by its Connection's mutex.
struct Channel {
  explicit Channel(int64_t capacity_messages) : capacity(static_cast<size_t>(capacity_messages)) {}

  const size_t capacity;
  std::deque<std::vector<std::byte>> queue;
  std::condition_variable has_message;  // at most one receiver waits
  std::condition_variable has_room;     // at most one sender waits
};

// What the two ends share. One mutex for both directions, so that a close is one event for everybody; it is held for a
// move of a vector at most.
struct Connection {
  Connection(int64_t capacity_down, int64_t capacity_up) : down(capacity_down), up(capacity_up) {}

  std::mutex mutex;
  std::optional<std::string> closed;  // the reason
  Channel down;
  Channel up;
};

class MemoryLink final : public Link {
 public:
  // Shared, because either end may be the first to go. `out` and `in` are its channels.
  MemoryLink(std::shared_ptr<Connection> connection, Channel& out, Channel& in)
      : connection_(std::move(connection)), out_(out), in_(in) {}

  ~MemoryLink() override { close("the other end of the link is gone"); }

  Status send(std::vector<std::byte> message) override {
    TP_CHECK(out_.capacity > 0, "a message of {} bytes on a direction without room for any", message.size());
    std::unique_lock lock(connection_->mutex);
    out_.has_room.wait(lock, [&] { return connection_->closed || out_.queue.size() < out_.capacity; });
    if (connection_->closed) return Error{*connection_->closed};
    out_.queue.push_back(std::move(message));
    out_.has_message.notify_one();
    return {};
  }

  Result<std::vector<std::byte>> receive() override {
    std::unique_lock lock(connection_->mutex);
    in_.has_message.wait(lock, [&] { return connection_->closed || !in_.queue.empty(); });
    if (in_.queue.empty()) return Error{*connection_->closed};
    auto message = std::move(in_.queue.front());
    in_.queue.pop_front();
    in_.has_room.notify_one();
    return message;
  }

  void close(std::string reason) override {
    const std::lock_guard lock(connection_->mutex);
    if (connection_->closed) return;
    connection_->closed = std::move(reason);
    for (auto* channel : {&out_, &in_}) {
      channel->has_message.notify_all();
      channel->has_room.notify_all();
    }
  }

 private:
  std::shared_ptr<Connection> connection_;
  Channel& out_;
  Channel& in_;
};

}  // namespace

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_link(int64_t capacity_down, int64_t capacity_up) {
  TP_CHECK(capacity_down >= 0 && capacity_up >= 0, "capacities of {} messages down and {} up", capacity_down,
           capacity_up);
  const auto connection = std::make_shared<Connection>(capacity_down, capacity_up);
  return {std::make_unique<MemoryLink>(connection, connection->down, connection->up),
          std::make_unique<MemoryLink>(connection, connection->up, connection->down)};
}

}  // namespace thinpipe
