// Replicas of a stage: machines that hold the same blocks and train on different microbatches of a step. So far every
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
  // Each gradient becomes the sum over the replicas, added in their order: the same bits on all of them.
  virtual Status sum(uint64_t epoch, int64_t step, std::span<at::Tensor> gradients) = 0;
};

// One replica: a sum is what is there already.
std::unique_ptr<Replicas> alone();

}  // namespace thinpipe
