// What crosses a cut, as bytes: a row-major (rows, cols) matrix - a row is a token, cols its coordinates - in one of
// the packs of config/run_config.h. docs/wire.md ("Packs") specifies every byte and every rounding; the same input
// gives the same bytes on every machine.
//
// No state, any thread. Needs the default floating-point environment: round to nearest, denormals kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "config/run_config.h"

namespace thinpipe {

// kStochastic rounds up or down with the probability that makes the mean exact; fp64 and fp32 always round to nearest.
enum class Rounding { kNearest, kStochastic };

enum class Direction { kForward, kBackward };

// Where stochastic rounding takes its bits: element e = row * cols + col uses CounterRng(seed, stream).bits32(e).
struct PackRandom {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

// The stream of one message. Distinct for distinct arguments within step < 2^32, microbatch < 2^16, boundary < 2^15,
// which must hold. Microbatches are counted within the step over all replicas.
uint64_t pack_stream(uint64_t step, uint64_t microbatch, uint64_t boundary, Direction direction);

// The shapes that can be packed: 0 <= rows <= kMaxPackRows, 1 <= cols <= kMaxPackCols, and pack_problem(pack, cols) "".
inline constexpr int64_t kMaxPackRows = int64_t{1} << 32;
inline constexpr int64_t kMaxPackCols = int64_t{1} << 20;

// "" or one sentence that says why rows of `cols` numbers do not fit, and which number near it does.
std::string pack_problem(Pack pack, int64_t cols);

// The exact size of the encoding. The shape must be one that can be packed.
size_t packed_bytes(Pack pack, int64_t rows, int64_t cols);

// T is float or double. in: (rows, cols), a shape that can be packed; out: packed_bytes(pack, rows, cols) bytes, which
// must not overlap `in`. `random` is read only by stochastic rounding.
template <class T>
void pack(Pack pack, std::span<const T> in, int64_t rows, int64_t cols, Rounding rounding, PackRandom random,
          std::span<std::byte> out);

// T is float or double. in: from a peer, so anything; out: (rows, cols). Fails on a shape that cannot be packed or when
// `in` is not exactly packed_bytes long, and then leaves `out` alone. Bytes that no encoder writes decode to NaN, never
// to an infinity; only fp64, fp32 and bf16 carry an infinity.
template <class T>
Status unpack(Pack pack, std::span<const std::byte> in, int64_t rows, int64_t cols, std::span<T> out);

extern template void pack(Pack, std::span<const float>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
extern template void pack(Pack, std::span<const double>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
extern template Status unpack(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<float>);
extern template Status unpack(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<double>);

}  // namespace thinpipe
