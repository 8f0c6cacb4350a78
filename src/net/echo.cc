#include "net/echo.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <vector>

namespace thinpipe {
namespace {

grpc::ByteBuffer echo_buffer(const std::vector<uint8_t>& bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

// Nothing on the way may make it smaller than it is.
void fill(std::vector<uint8_t>& bytes, size_t from) {
  uint32_t state = 1;
  std::generate(bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes.end(), [&] {
    state = state * 1664525 + 1013904223;
    return static_cast<uint8_t>(state >> 24);
  });
}

}  // namespace

grpc::ByteBuffer echo_request(size_t payload_bytes, uint32_t answer_bytes) {
  TP_CHECK(payload_bytes <= kMaxEchoBytes && answer_bytes <= kMaxEchoBytes, "an echo of {} bytes for {}", payload_bytes,
           answer_bytes);
  std::vector<uint8_t> bytes(kEchoHeaderBytes + payload_bytes);
  for (size_t at = 0; at < kEchoHeaderBytes; ++at) bytes[at] = static_cast<uint8_t>(answer_bytes >> (8 * at));
  fill(bytes, kEchoHeaderBytes);
  return echo_buffer(bytes);
}

Result<grpc::ByteBuffer> echo_answer(const grpc::ByteBuffer& request) {
  const size_t bytes = request.Length();
  if (bytes < kEchoHeaderBytes) return Error{fmt::format("an echo of {} bytes, needs {}", bytes, kEchoHeaderBytes)};
  if (bytes - kEchoHeaderBytes > kMaxEchoBytes) {
    return Error{fmt::format("an echo with {} bytes, the most is {}", bytes - kEchoHeaderBytes, kMaxEchoBytes)};
  }
  std::vector<grpc::Slice> slices;
  if (!request.Dump(&slices).ok()) return Error{"an echo that cannot be read"};
  uint32_t asked = 0;
  size_t at = 0;
  for (const auto& slice : slices) {
    for (const uint8_t byte : slice) {
      if (at == kEchoHeaderBytes) break;
      asked |= uint32_t{byte} << (8 * at++);
    }
  }
  if (asked > kMaxEchoBytes) return Error{fmt::format("an echo for {} bytes, the most is {}", asked, kMaxEchoBytes)};
  std::vector<uint8_t> answer(asked);
  fill(answer, 0);
  return echo_buffer(answer);
}

}  // namespace thinpipe
