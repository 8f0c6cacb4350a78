// Link/Echo, by which a peer measures the path to another: so many bytes there, so many back. The asking side is
// path_probe.h; LinkService answers. Inside net/ only.
//
// A request is the number of bytes of the answer, 4 bytes little-endian, and then any payload.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace thinpipe {

inline constexpr char kEchoMethod[] = "/thinpipe.Link/Echo";
inline constexpr size_t kMaxEchoBytes = size_t{1} << 20;  // of a payload, and of an answer
inline constexpr size_t kEchoHeaderBytes = 4;

// payload_bytes and answer_bytes: at most kMaxEchoBytes each.
grpc::ByteBuffer echo_request(size_t payload_bytes, uint32_t answer_bytes);

// What to answer; an error when the request is too short, or asks for or brings too much.
Result<grpc::ByteBuffer> echo_answer(const grpc::ByteBuffer& request);

}  // namespace thinpipe
