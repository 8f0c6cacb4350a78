// Values as file formats store them, and back: little-endian floats of 32, 16 and (for reading) 64 bits, and ggml's
// q8_0. Private to this folder. (The packs of boundary/ round differently: to a scale, at random, never to infinity.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/safetensors.h"

namespace thinpipe {

// Rounds to nearest, ties to even; to infinity above the largest finite number.
uint16_t to_f16(float value);
uint16_t to_bf16(float value);
float from_f16(uint16_t bits);
float from_bf16(uint16_t bits);

// `dtype` is F32, F16 or BF16. An error names the first value that is not finite in it, but not the tensor.
Result<std::string> stored_values(std::span<const float> values, Dtype dtype);

// `dtype` is F64, F32, F16 or BF16, and the bytes are a whole number of values. Refuses a value that is not finite as a
// float.
Result<std::vector<float>> loaded_values(std::span<const std::byte> bytes, Dtype dtype);

// q8_0: every 32 values as a 16-bit scale and 32 signed bytes. The number of values and the length of a row are
// multiples of 32. An error names the first value whose block has no finite scale, but not the tensor.
Result<std::string> q8_blocks(std::span<const float> values);

}  // namespace thinpipe
