// A Link over one bidirectional gRPC stream, whichever end of it: the queues, the two threads and the closing that the
// dialling side (grpc_link.h) and the accepting side (link_service.h) share. Inside net/ only.
//
// On the stream: buffers of one byte, the kind, and the rest. Kind 0 is a message, 1 the last word: why the end closed.
// After its last word an end sends nothing; the server's end returns from the call when both ends are done.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <charconv>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/line.h"
#include "net/link.h"

namespace thinpipe {

inline constexpr char kExchangeMethod[] = "/thinpipe.Link/Exchange";
// What a dialler says of itself, as metadata of the call; the two names may hold any bytes, hence "-bin".
inline constexpr char kRunKey[] = "thinpipe-run-bin";
inline constexpr char kPeerKey[] = "thinpipe-peer-bin";
inline constexpr char kBoundaryKey[] = "thinpipe-boundary";
inline constexpr char kEpochKey[] = "thinpipe-epoch";
// In the answer of a server that has accepted the stream.
inline constexpr char kAcceptedKey[] = "thinpipe-accepted";

// A server reads them here, before it answers. An error unless the key is there exactly once.
Result<std::string> metadata_text(const grpc::ServerContextBase& context, const char* key);

template <class Number>
Result<Number> metadata_number(const grpc::ServerContextBase& context, const char* key) {
  const auto text = TRY(metadata_text(context, key));
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stopped, fault] = std::from_chars(text.data(), end, number);
  if (fault != std::errc{} || stopped != end) return Error{fmt::format("{} is '{}', not a number", key, text)};
  return number;
}

// Why an end closed is cut to so many bytes.
inline constexpr size_t kMaxReasonBytes = kMaxLineBytes;
// Both ends ask each other so often whether they are still there, and wait so long for the answer.
inline constexpr int kKeepaliveMs = 10'000;

// The largest buffer either end takes, for gRPC's own limit.
int max_buffer_bytes(size_t max_message_bytes);

// What gRPC may hold of what has arrived, all links of a server or the one of a dialler together. gRPC 1.51 compares a
// message with max_buffer_bytes() only when it has all of it; this is what ends a stream with a huge one before.
size_t max_held_bytes(size_t max_message_bytes);

// The buffer of a last word.
grpc::ByteBuffer last_word(std::string_view reason);

// One end of a stream. read() and write() are called by one thread each; they return false when the stream has ended.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  virtual bool read(grpc::ByteBuffer& buffer) = 0;
  virtual bool write(const grpc::ByteBuffer& buffer) = 0;
  // After the last write.
  virtual void writes_done() = 0;
  // read() returned false and there had been no last word: makes write() fail soon, if it does not by itself.
  virtual void abandon() = 0;
  // From any thread: read() and write() fail soon.
  virtual void cancel() = 0;
  // Once, when nobody reads or writes any more: what the transport has to say about the end.
  virtual std::string finish() = 0;
};

struct StreamLinkOptions {
  std::string peer;  // for the reasons
  int64_t capacity_out = 0;
  int64_t capacity_in = 0;
  size_t max_message_bytes = 0;
};

// The shared state of a link: owned by the Link that the worker holds, and, on the accepting side, also by the call
// that keeps the stream alive and may have to close it.
class StreamPump {
 public:
  // Starts the two threads.
  StreamPump(std::unique_ptr<ByteStream> stream, StreamLinkOptions options);

  Status send(std::vector<std::byte> message);
  Result<std::vector<std::byte>> receive();
  void close(std::string reason);

  // Closes, gives what is queued half a second to leave, cancels the stream otherwise, and ends the threads. Once.
  void stop();
  // Returns when neither thread will touch the stream again.
  void wait_until_ended();

 private:
  void run_sender();
  void run_receiver();
  std::optional<grpc::ByteBuffer> next_outgoing();
  void take(const grpc::ByteBuffer& buffer);
  void take_message(std::vector<std::byte> message);
  void closed_by_peer(std::string reason);
  void end_direction();
  // With the mutex held.
  void set_closed(std::string reason);

  const StreamLinkOptions options_;

  std::mutex mutex_;
  std::condition_variable has_outgoing_;  // the sender thread waits: a message, or the end
  std::condition_variable has_room_;      // send() waits
  std::condition_variable has_message_;   // receive() waits
  std::condition_variable may_take_;      // the receiver thread waits: room, or the end
  std::condition_variable has_ended_;
  std::optional<std::string> closed_;  // the reason
  bool owes_last_word_ = false;        // closed by this end
  bool write_failed_ = false;
  bool read_ended_ = false;
  int directions_ = 2;  // threads that use the stream
  bool ended_ = false;
  std::deque<std::vector<std::byte>> outgoing_;
  std::deque<std::vector<std::byte>> incoming_;

  std::unique_ptr<ByteStream> stream_;
  std::thread sender_;
  std::thread receiver_;
};

// Destroying it stops the pump.
std::unique_ptr<Link> make_stream_link(std::shared_ptr<StreamPump> pump);

}  // namespace thinpipe
