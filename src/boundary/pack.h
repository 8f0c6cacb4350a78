// What crosses a cut, as bytes: a row-major (rows, cols) matrix, one row per token, in one of the packs of
// config/run_config.h. docs/wire.md ("Packs") specifies every byte and every rounding. The same input gives the same
// bytes on every machine.
//
// Stateless and thread-safe. Needs the default floating-point environment: round to nearest, keep denormals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

// kStochastic rounds up or down with probabilities that make the mean exact; fp64 and fp32 always round to nearest.
enum class Rounding { kNearest, kStochastic };

enum class Direction { kForward, kBackward };

// The random bits of stochastic rounding: element e = row * cols + col uses CounterRng(seed, stream).bits32(e).
struct PackRandom {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

// The stream of one message. Needs step < 2^32, microbatch < 2^16 and boundary < 2^15; different arguments give
// different streams. Microbatches are numbered within the step, over all replicas.
uint64_t pack_stream(uint64_t step, uint64_t microbatch, uint64_t boundary, Direction direction);

// The shapes that can be packed: 0 <= rows <= kMaxPackRows, 1 <= cols <= kMaxPackCols, and pack_problem(pack, cols) "".
inline constexpr int64_t kMaxPackRows = int64_t{1} << 32;
inline constexpr int64_t kMaxPackCols = int64_t{1} << 20;

// "" or one sentence that says why rows of `cols` numbers do not fit and which nearby number does.
std::string pack_problem(Pack pack, int64_t cols);

// The exact size of the encoding. The shape must be valid for the pack.
size_t packed_bytes(Pack pack, int64_t rows, int64_t cols);

// T is float or double. in: (rows, cols), a valid shape; out: packed_bytes(pack, rows, cols) bytes, which must not
// overlap `in`. Only stochastic rounding uses `random`.
template <class T>
void pack(Pack pack, std::span<const T> in, int64_t rows, int64_t cols, Rounding rounding, PackRandom random,
          std::span<std::byte> out);

// T is float or double. in: bytes from a peer, possibly hostile; out: (rows, cols). Returns an error for an invalid
// shape or if `in` is not exactly packed_bytes long; `out` is unchanged then. Bytes that no encoder writes decode to
// NaN, never to infinity; only fp64, fp32 and bf16 can carry infinity.
template <class T>
Status unpack(Pack pack, std::span<const std::byte> in, int64_t rows, int64_t cols, std::span<T> out);

extern template void pack(Pack, std::span<const float>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
extern template void pack(Pack, std::span<const double>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
extern template Status unpack(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<float>);
extern template Status unpack(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<double>);

}  // namespace thinpipe
