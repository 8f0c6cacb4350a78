// What a stage consists of, as numbers: its parameters by shape (docs/model.md), the state a checkpoint holds of it,
// and the bytes its links carry in a step (docs/wire.md). From the config alone: nothing is made, no libtorch needed.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"

namespace thinpipe {

enum class TensorRole { kMatrix, kCoordinates, kTable, kGain };

struct ParameterShape {
  TensorRole role;
  int64_t rows;
  int64_t columns;
  int64_t widest_part;    // columns of the widest of the matrices that stand side by side (q | k | v)
  bool in_block = false;  // what muon may take; the embedding's coordinates are not

  double elements() const { return static_cast<double>(rows) * static_cast<double>(columns); }
};

// Blocks [first, last) of the model, by blocks_per_stage(). The config must be validated, here and below; `stage` must
// be one of its stages.
struct StageBlocks {
  int64_t first;
  int64_t last;
};
StageBlocks stage_blocks(const RunConfig& config, int64_t stage);

// Trainable tensors only.
std::vector<ParameterShape> parameter_shapes(const RunConfig& config, int64_t vocab, StageBlocks blocks);
int64_t parameter_count(const RunConfig& config, int64_t vocab, int64_t stage);

// Numbers the optimizer keeps for such a parameter: muon one moment, adamw two, row_adamw one and one per row.
double optimizer_elements(OptimizerKind kind, const ParameterShape& shape);

// Bytes of a number as weights, gradients, moments and activations are kept (bf16 keeps float32).
int64_t element_bytes(Precision precision);

// What a checkpoint holds of the stage, and so what somebody who takes it over is sent first.
uint64_t state_bytes(const RunConfig& config, int64_t vocab, int64_t stage);
uint64_t state_bytes(const RunConfig& config, int64_t vocab, StageBlocks blocks);

// What a stage's links carry in one step, both neighbours together; validation passes not counted.
struct StepTraffic {
  uint64_t sent;
  uint64_t received;
};
StepTraffic step_traffic(const RunConfig& config, int64_t vocab, int64_t stage);

}  // namespace thinpipe
