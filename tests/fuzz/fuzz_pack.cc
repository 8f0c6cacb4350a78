// Decodes any bytes as a packed matrix; the first three choose pack and shape. Refuses a wrong number of bytes.
// Otherwise every number of a scaled pack is NaN or within the tensor's scale, and finite results survive packing and
// unpacking.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/result.h"
#include "boundary/pack.h"

namespace {

template <class T>
void check_decoded(thinpipe::Pack pack, const std::vector<std::byte>& bytes, int64_t rows, int64_t cols) {
  using namespace thinpipe;
  std::vector<T> values(static_cast<size_t>(rows * cols));
  TP_CHECK(unpack<T>(pack, bytes, rows, cols, values).ok(), "the right size was refused");
  if (pack == Pack::kFp64 || pack == Pack::kFp32 || pack == Pack::kBf16) return;
  float scale = 0;
  std::memcpy(&scale, bytes.data(), sizeof scale);
  bool finite = true;
  for (const T value : values) {
    TP_CHECK(std::isnan(value) || std::abs(value) <= static_cast<double>(scale) * (1 + 1e-15), "{} above {}", value,
             scale);
    finite = finite && std::isfinite(value);
  }
  if (!finite) return;
  std::vector<std::byte> again(bytes.size());
  thinpipe::pack<T>(pack, values, rows, cols, Rounding::kStochastic, {1, 2}, again);
  TP_CHECK(unpack<T>(pack, again, rows, cols, values).ok(), "what was packed is refused");
  for (const T value : values) TP_CHECK(std::isfinite(value), "a finite number became {}", value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thinpipe;
  if (size < 3) return 0;
  const auto pack = static_cast<Pack>(data[0] % 7);
  const int64_t rows = data[1] % 9;
  const int64_t cols = data[2] % 65;
  // On the heap with their exact size, so that a read past the end is detected.
  std::vector<std::byte> bytes(size - 3);
  if (!bytes.empty()) std::memcpy(bytes.data(), data + 3, bytes.size());
  std::vector<float> values(static_cast<size_t>(rows * cols));
  const bool fits = pack_problem(pack, cols).empty();
  const bool accepted = unpack<float>(pack, bytes, rows, cols, values).ok();
  TP_CHECK(accepted == (fits && bytes.size() == packed_bytes(pack, rows, cols)), "accepted a wrong size or shape");
  if (!fits) return 0;
  bytes.resize(packed_bytes(pack, rows, cols));
  bytes.shrink_to_fit();
  check_decoded<float>(pack, bytes, rows, cols);
  check_decoded<double>(pack, bytes, rows, cols);
  return 0;
}
