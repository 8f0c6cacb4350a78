// What the file of a model's unit must look like: every tensor with its type and shape, from the description of the
// model. The coordinator checks each file that a worker uploads, and a stage each file that it restores, before
// anything of it is used (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/run_config.h"
#include "store/safetensors.h"

namespace thinpipe {

inline constexpr const char* kUnitFormat = "thinpipe-unit-2";
inline constexpr const char* kTap = "tap.c";
inline constexpr const char* kBasis = "basis.u";
// What the messages of a cut lost so far (boundary.error_feedback), in the file of the block at that cut. Files without
// it are as good: the run may have had other cuts.
inline constexpr const char* kLostForward = "cut.left_out.forward";    // behind this block
inline constexpr const char* kLostBackward = "cut.left_out.backward";  // before this block

struct UnitTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  bool optional = false;
};
// Empty if the model has no such unit.
std::vector<UnitTensor> unit_tensors(const RunConfig& config, int64_t vocab, const std::string& unit);
// No honest file of that unit is larger.
uint64_t most_unit_bytes(const RunConfig& config, int64_t vocab, const std::string& unit);

// Returns an error if the file is not the state of that unit after `step` committed steps: other tensors, types or
// shapes, another step, numbers that are not finite, a basis whose columns are not orthonormal.
Status check_unit_file(const RunConfig& config, int64_t vocab, const std::string& unit, int64_t step,
                       const SafetensorsFile& file);
// The version of the basis that a checked file belongs to. At most one per step.
Result<int64_t> basis_version_of(const SafetensorsFile& file);

}  // namespace thinpipe
