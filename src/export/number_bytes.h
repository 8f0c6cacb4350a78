// Values as the formats store them, and back: little-endian 32-, 16- and (reading) 64-bit floats. Private to this
// folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace thinpipe {

// To the nearest, ties to even; beyond the largest: infinity.
uint16_t to_f16(float value);
uint16_t to_bf16(float value);
float from_f16(uint16_t bits);
float from_bf16(uint16_t bits);

// `dtype` is F32, F16 or BF16. An error names the first value that is not finite in it; it does not name the tensor.
Result<std::string> stored_values(std::span<const float> values, Dtype dtype);

// `dtype` is F64, F32, F16 or BF16, and the bytes a whole number of its values. Refuses what is not finite as a float.
Result<std::vector<float>> loaded_values(std::span<const std::byte> bytes, Dtype dtype);

}  // namespace thinpipe
