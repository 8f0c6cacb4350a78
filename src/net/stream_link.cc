#include "net/stream_link.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace thinpipe {
namespace {

constexpr std::byte kMessage{0};
constexpr std::byte kLastWord{1};
constexpr auto kDrainTime = std::chrono::milliseconds(500);

grpc::Slice kind_slice(std::byte kind) { return grpc::Slice(&kind, 1); }

// The slice owns the vector from here on; gRPC writes its bytes to the socket from where they are.
grpc::ByteBuffer message_buffer(std::vector<std::byte> message) {
  if (message.empty()) {
    const grpc::Slice kind = kind_slice(kMessage);
    return grpc::ByteBuffer(&kind, 1);
  }
  auto* owned = new std::vector<std::byte>(std::move(message));
  const grpc::Slice slices[] = {kind_slice(kMessage),
                                grpc::Slice(
                                    owned->data(), owned->size(),
                                    [](void* vector) { delete static_cast<std::vector<std::byte>*>(vector); }, owned)};
  return grpc::ByteBuffer(slices, 2);
}

// Everything after the kind. The buffer's length has been checked.
std::vector<std::byte> contents(const std::vector<grpc::Slice>& slices, size_t buffer_bytes) {
  std::vector<std::byte> bytes;
  bytes.reserve(buffer_bytes - 1);
  size_t skip = 1;
  for (const auto& slice : slices) {
    const auto* begin = reinterpret_cast<const std::byte*>(slice.begin());
    const size_t skipped = std::min(skip, slice.size());
    bytes.insert(bytes.end(), begin + skipped, begin + slice.size());
    skip -= skipped;
  }
  return bytes;
}

std::byte kind_of(const std::vector<grpc::Slice>& slices) {
  for (const auto& slice : slices) {
    if (slice.size() > 0) return std::byte{*slice.begin()};
  }
  return std::byte{0xff};
}

}  // namespace

Result<std::string> metadata_text(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  if (metadata.count(key) != 1) return Error{fmt::format("the stream's metadata holds no {}, or several", key)};
  const auto value = metadata.find(key)->second;
  return std::string(value.data(), value.size());
}

int max_buffer_bytes(size_t max_message_bytes) {
  constexpr size_t kMost = std::numeric_limits<int>::max() - 1;
  return static_cast<int>(std::clamp(max_message_bytes, kMaxReasonBytes, kMost)) + 1;
}

// Several messages under way, and what flow control lets an honest peer send ahead on a long fast line.
size_t max_held_bytes(size_t max_message_bytes) {
  return (size_t{32} << 20) + 8 * static_cast<size_t>(max_buffer_bytes(max_message_bytes));
}

grpc::ByteBuffer last_word(std::string_view reason) {
  const auto text = one_line(reason);
  const grpc::Slice slices[] = {kind_slice(kLastWord), grpc::Slice(text.data(), text.size())};
  return grpc::ByteBuffer(slices, 2);
}

StreamPump::StreamPump(std::unique_ptr<ByteStream> stream, StreamLinkOptions options)
    : options_(std::move(options)), stream_(std::move(stream)) {
  TP_CHECK(options_.capacity_out >= 0 && options_.capacity_in >= 0, "capacities of {} messages out and {} in",
           options_.capacity_out, options_.capacity_in);
  sender_ = std::thread([this] { run_sender(); });
  receiver_ = std::thread([this] { run_receiver(); });
}

Status StreamPump::send(std::vector<std::byte> message) {
  TP_CHECK(options_.capacity_out > 0, "a message of {} bytes on a direction without room for any", message.size());
  TP_CHECK(message.size() <= options_.max_message_bytes, "a message of {} bytes on a link for at most {}",
           message.size(), options_.max_message_bytes);
  std::unique_lock lock(mutex_);
  has_room_.wait(lock, [&] { return closed_ || outgoing_.size() < static_cast<size_t>(options_.capacity_out); });
  if (closed_) return Error{*closed_};
  outgoing_.push_back(std::move(message));
  has_outgoing_.notify_one();
  return {};
}

Result<std::vector<std::byte>> StreamPump::receive() {
  std::unique_lock lock(mutex_);
  has_message_.wait(lock, [&] { return closed_ || !incoming_.empty(); });
  if (incoming_.empty()) return Error{*closed_};
  auto message = std::move(incoming_.front());
  incoming_.pop_front();
  may_take_.notify_one();
  return message;
}

void StreamPump::close(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  owes_last_word_ = true;
  set_closed(std::move(reason));
}

void StreamPump::stop() {
  close("the other end of the link is gone");
  {
    std::unique_lock lock(mutex_);
    // The mutex is held: until ended_ is set, the stream is there to be cancelled.
    if (!has_ended_.wait_for(lock, kDrainTime, [&] { return ended_; })) stream_->cancel();
  }
  sender_.join();
  receiver_.join();
}

void StreamPump::wait_until_ended() {
  std::unique_lock lock(mutex_);
  has_ended_.wait(lock, [&] { return ended_; });
}

void StreamPump::set_closed(std::string reason) {
  closed_ = std::move(reason);
  has_outgoing_.notify_all();
  has_room_.notify_all();
  has_message_.notify_all();
  may_take_.notify_all();
}

void StreamPump::run_sender() {
  while (const auto buffer = next_outgoing()) {
    if (stream_->write(*buffer)) continue;
    // The receiver thread learns why. It must not wait for room now: send() waits for it to say.
    const std::lock_guard lock(mutex_);
    write_failed_ = true;
    may_take_.notify_all();
    break;
  }
  if (!write_failed_) stream_->writes_done();  // written by this thread only
  end_direction();
}

std::optional<grpc::ByteBuffer> StreamPump::next_outgoing() {
  std::unique_lock lock(mutex_);
  has_outgoing_.wait(lock, [&] { return closed_ || read_ended_ || !outgoing_.empty(); });
  if (read_ended_ && !closed_) return std::nullopt;
  if (!outgoing_.empty()) {
    auto message = std::move(outgoing_.front());
    outgoing_.pop_front();
    has_room_.notify_one();
    lock.unlock();
    return message_buffer(std::move(message));
  }
  if (!std::exchange(owes_last_word_, false)) return std::nullopt;
  return last_word(*closed_);
}

void StreamPump::run_receiver() {
  grpc::ByteBuffer buffer;
  while (stream_->read(buffer)) {
    take(buffer);
    buffer.Clear();
  }
  bool early;
  {
    const std::lock_guard lock(mutex_);
    read_ended_ = true;
    early = !closed_;
    has_outgoing_.notify_all();
  }
  if (early) stream_->abandon();
  end_direction();
}

void StreamPump::take(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  const size_t bytes = buffer.Length();
  if (bytes == 0 || !buffer.Dump(&slices).ok())
    return close(fmt::format("{} sent a buffer without a kind", options_.peer));
  const auto kind = kind_of(slices);
  if (kind == kLastWord) {
    const auto reason = contents(slices, bytes);
    return closed_by_peer(one_line({reinterpret_cast<const char*>(reason.data()), reason.size()}));
  }
  if (kind != kMessage) {
    return close(fmt::format("{} sent a buffer of kind {}, which is none", options_.peer, static_cast<int>(kind)));
  }
  if (options_.capacity_in == 0) {
    return close(fmt::format("{} sent a message in a direction without room for any", options_.peer));
  }
  if (bytes - 1 > options_.max_message_bytes) {
    return close(fmt::format("{} sent a message of {} bytes, the most is {}", options_.peer, bytes - 1,
                             options_.max_message_bytes));
  }
  take_message(contents(slices, bytes));
}

// One message may wait here beyond the capacity: so the last word behind a full queue is read at once.
void StreamPump::take_message(std::vector<std::byte> message) {
  std::unique_lock lock(mutex_);
  may_take_.wait(
      lock, [&] { return closed_ || write_failed_ || incoming_.size() < static_cast<size_t>(options_.capacity_in); });
  if (closed_) return;
  incoming_.push_back(std::move(message));
  has_message_.notify_one();
}

void StreamPump::closed_by_peer(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  outgoing_.clear();
  set_closed(std::move(reason));
}

void StreamPump::end_direction() {
  {
    const std::lock_guard lock(mutex_);
    if (--directions_ > 0) return;
  }
  const auto said = stream_->finish();
  const std::lock_guard lock(mutex_);
  if (!closed_) set_closed(one_line(fmt::format("connection to {} lost: {}", options_.peer, said)));
  ended_ = true;
  has_ended_.notify_all();
}

namespace {

class StreamLink final : public Link {
 public:
  explicit StreamLink(std::shared_ptr<StreamPump> pump) : pump_(std::move(pump)) {}
  ~StreamLink() override { pump_->stop(); }

  Status send(std::vector<std::byte> message) override { return pump_->send(std::move(message)); }
  Result<std::vector<std::byte>> receive() override { return pump_->receive(); }
  void close(std::string reason) override { pump_->close(std::move(reason)); }

 private:
  std::shared_ptr<StreamPump> pump_;  // shared for the reason StreamPump gives
};

}  // namespace

std::unique_ptr<Link> make_stream_link(std::shared_ptr<StreamPump> pump) {
  return std::make_unique<StreamLink>(std::move(pump));
}

}  // namespace thinpipe
