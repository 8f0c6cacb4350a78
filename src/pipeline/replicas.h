// Replicas of a stage: machines that hold the same blocks and train on different microbatches of a step. Today every
// stage has one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace thinpipe {

class Replicas {
 public:
  virtual ~Replicas() = default;
  // Replaces each gradient by the sum over the replicas, added in their order, so that all have the same bits.
  virtual Status sum(uint64_t epoch, int64_t step, std::span<at::Tensor> gradients) = 0;
};

// One replica: the sum is the gradient itself.
std::unique_ptr<Replicas> alone();

}  // namespace thinpipe
