// The next basis on its way upstream: its version and U, float64 little-endian. Shape and version must be what the
// receiver expects, and the columns orthonormal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "subspace/basis.h"

namespace thinpipe {

size_t basis_message_bytes(int64_t d, int64_t k);
std::vector<std::byte> encode_basis(const Basis& basis);
// `current`: what the receiver holds; the message must be its successor.
Result<Basis> decode_basis(std::span<const std::byte> message, const Basis& current);

}  // namespace thinpipe
