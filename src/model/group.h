// The machines that hold one stage together; each has a part of every matrix (ParameterSpec::split). Before the dense
// tail they add up k numbers per token, not d. Today every stage is a group of one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace thinpipe {

class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Every member calls this with a tensor of the same shape. Afterwards each has the sum, added in the order of ranks.
  virtual void all_reduce_(at::Tensor& tensor) = 0;

  // A member's starting value when the group adds to `tensor`, which all members have: zero except for the first
  // member.
  at::Tensor own_start(const at::Tensor& tensor) const;
};

// A group of one machine: sums change nothing. Lives as long as the program.
TensorGroup& group_of_one();

}  // namespace thinpipe
