#include "net/memory_link.h"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace thinpipe {
namespace {

// Frames of one direction that are written and not yet read. Few, because PacketLink's outbox is the real queue.
constexpr size_t kMostFrames = 2;

struct Direction {
  std::deque<wire::Frame> frames;
  bool written = false;  // no more will be written
  bool refused = false;  // nobody will read
};

// What the two ends share. Both directions use one mutex and one condition, because they hold the mutex only briefly.
struct Connection {
  std::mutex mutex;
  std::condition_variable changed;
  Direction down, up;
};

class MemoryLink final : public Link {
 public:
  // The connection is shared, because either end may go first. `out` and `in` are its directions.
  MemoryLink(std::shared_ptr<Connection> connection, Direction& out, Direction& in)
      : connection_(std::move(connection)), out_(out), in_(in) {}
  ~MemoryLink() override { (void)finish(); }

  bool write(wire::Frame frame) override {
    std::unique_lock lock(connection_->mutex);
    connection_->changed.wait(lock, [&] { return out_.refused || out_.frames.size() < kMostFrames; });
    if (out_.refused) return false;
    out_.frames.push_back(std::move(frame));
    connection_->changed.notify_all();
    return true;
  }

  void end_writing() override {
    change([&] { out_.written = true; });
  }

  bool read(wire::Frame& frame) override {
    std::unique_lock lock(connection_->mutex);
    connection_->changed.wait(lock, [&] { return !in_.frames.empty() || in_.written || in_.refused; });
    if (in_.frames.empty() || in_.refused) return false;
    frame = std::move(in_.frames.front());
    in_.frames.pop_front();
    connection_->changed.notify_all();
    return true;
  }

  void cancel() override {
    change([&] { out_.written = out_.refused = in_.written = in_.refused = true; });
  }

  std::string finish() override {
    change([&] { out_.written = in_.refused = true; });
    return "the other end of the link is gone";
  }

 private:
  template <class Change>
  void change(const Change& how) {
    const std::lock_guard lock(connection_->mutex);
    how();
    connection_->changed.notify_all();
  }

  std::shared_ptr<Connection> connection_;
  Direction& out_;
  Direction& in_;
};

}  // namespace

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_memory_link() {
  const auto connection = std::make_shared<Connection>();
  return {std::make_unique<MemoryLink>(connection, connection->down, connection->up),
          std::make_unique<MemoryLink>(connection, connection->up, connection->down)};
}

}  // namespace thinpipe
