// The machines that hold one stage together, each a share of every matrix (ParameterSpec::split). Before the dense tail
// what they add up is k numbers a token, not d. Today every stage is a group of one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace thinpipe {

class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Every member calls it with a tensor of one shape; afterwards each has the sum, added in the order of ranks.
  virtual void all_reduce_(at::Tensor& tensor) = 0;

  // What a member starts from when the group adds to `tensor`, which all of them have: only the first brings it along.
  at::Tensor own_start(const at::Tensor& tensor) const;
};

// One machine: nothing is added. Lives as long as the program.
TensorGroup& group_of_one();

}  // namespace thinpipe
