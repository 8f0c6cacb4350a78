#include "checkpoint/safetensors.h"

#include <array>
#include <utility>

namespace thinpipe {
namespace {

struct DtypeInfo {
  std::string_view name;
  int64_t bytes;
};

// In the order of Dtype.
constexpr std::array<DtypeInfo, 10> kDtypes{{{"F64", 8},
                                             {"F32", 4},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"I64", 8},
                                             {"I32", 4},
                                             {"I16", 2},
                                             {"I8", 1},
                                             {"U8", 1},
                                             {"BOOL", 1}}};

const DtypeInfo& info(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  TP_CHECK(index < kDtypes.size(), "dtype {} does not exist", index);
  return kDtypes[index];
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return info(dtype).name; }
int64_t dtype_bytes(Dtype dtype) { return info(dtype).bytes; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::optional<int64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape) {
  int64_t product = dtype_bytes(dtype);
  bool empty = false;
  for (const int64_t length : shape) {
    if (length < 0) return std::nullopt;
    if (length == 0) {
      // Whoever multiplies the lengths may meet the zero last: the others must not overflow on their own.
      empty = true;
    } else if (__builtin_mul_overflow(product, length, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

}  // namespace thinpipe
