// The shapes and sizes of packs, and the checks before encoding and decoding.
#include "boundary/pack.h"

#include <fmt/format.h>

#include <utility>

#include "base/result.h"
#include "base/rng.h"
#include "boundary/pack_numbers.h"

namespace thinpipe {
namespace {

constexpr size_t kTensorScaleBytes = sizeof(float);
constexpr size_t kRowScaleBytes = sizeof(uint16_t);

struct Layout {
  const char* name;
  int bits;           // per number
  bool tensor_scale;  // a float32 in front
  bool row_scales;    // then an fp16 per row
};

Layout layout(Pack pack) {
  switch (pack) {
    case Pack::kFp64:
      return {"fp64", 64, false, false};
    case Pack::kFp32:
      return {"fp32", 32, false, false};
    case Pack::kBf16:
      return {"bf16", 16, false, false};
    case Pack::kFp16:
      return {"fp16", 16, true, false};
    case Pack::kInt8:
      return {"int8", 8, true, true};
    case Pack::kInt4:
      return {"int4", 4, true, true};
    case Pack::kInt2:
      return {"int2", 2, true, true};
  }
  TP_CHECK(false, "unknown pack {}", static_cast<int>(pack));
}

std::string shape_problem(Pack pack, int64_t rows, int64_t cols) {
  if (rows < 0 || rows > kMaxPackRows) return fmt::format("cannot pack {} rows: needs 0 to {}", rows, kMaxPackRows);
  return pack_problem(pack, cols);
}

}  // namespace

uint64_t pack_stream(uint64_t step, uint64_t microbatch, uint64_t boundary, Direction direction) {
  TP_CHECK(step < uint64_t{1} << 32 && microbatch < 1u << 16 && boundary < 1u << 15,
           "step {}, microbatch {}, boundary {} exceed a pack stream's fields", step, microbatch, boundary);
  const uint64_t backward = direction == Direction::kBackward ? 1 : 0;
  // The name keeps these apart from streams that are numbered from 0.
  return stream_of("pack") ^ (step << 32 | microbatch << 16 | boundary << 1 | backward);
}

std::string pack_problem(Pack pack, int64_t cols) {
  const Layout pack_layout = layout(pack);
  if (cols < 1 || cols > kMaxPackCols) {
    return fmt::format("cannot pack {} columns: needs 1 to {}", cols, kMaxPackCols);
  }
  const int64_t per_byte = pack_layout.bits < 8 ? 8 / pack_layout.bits : 1;
  if (cols % per_byte == 0) return "";
  const int64_t below = cols / per_byte * per_byte;
  const std::string fitting =
      below > 0 ? fmt::format("{} or {}", below, below + per_byte) : fmt::format("{}", per_byte);
  return fmt::format("{} puts {} numbers into a byte, so {} columns do not fit: use {}", pack_layout.name, per_byte,
                     cols, fitting);
}

size_t packed_bytes(Pack pack, int64_t rows, int64_t cols) {
  const std::string problem = shape_problem(pack, rows, cols);
  TP_CHECK(problem.empty(), "{}", problem);
  const Layout pack_layout = layout(pack);
  const auto row_bytes = static_cast<size_t>(cols) * static_cast<size_t>(pack_layout.bits) / 8 +
                         (pack_layout.row_scales ? kRowScaleBytes : 0);
  return (pack_layout.tensor_scale ? kTensorScaleBytes : 0) + static_cast<size_t>(rows) * row_bytes;
}

template <class T>
void pack(Pack pack, std::span<const T> in, int64_t rows, int64_t cols, Rounding rounding, PackRandom random,
          std::span<std::byte> out) {
  const size_t bytes = packed_bytes(pack, rows, cols);
  TP_CHECK(in.size() == static_cast<size_t>(rows * cols) && out.size() == bytes,
           "pack of {} x {}: {} numbers into {} bytes, needs {} bytes", rows, cols, in.size(), out.size(), bytes);
  pack_internal::encode(pack, in, rows, cols, rounding, random, out);
}

template <class T>
Status unpack(Pack pack, std::span<const std::byte> in, int64_t rows, int64_t cols, std::span<T> out) {
  if (std::string problem = shape_problem(pack, rows, cols); !problem.empty()) return Error{std::move(problem)};
  const size_t bytes = packed_bytes(pack, rows, cols);
  if (in.size() != bytes) {
    return Error{
        fmt::format("{} bytes for {} x {} numbers in {}: needs {}", in.size(), rows, cols, layout(pack).name, bytes)};
  }
  TP_CHECK(out.size() == static_cast<size_t>(rows * cols), "unpack of {} x {} into {} numbers", rows, cols, out.size());
  pack_internal::decode(pack, in, rows, cols, out);
  return {};
}

template void pack(Pack, std::span<const float>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
template void pack(Pack, std::span<const double>, int64_t, int64_t, Rounding, PackRandom, std::span<std::byte>);
template Status unpack(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<float>);
template Status unpack(Pack, std::span<const std::byte>, int64_t, int64_t, std::span<double>);

}  // namespace thinpipe
