// A moment of one parameter: a running mean that an update rule keeps from step to step, in the parameter's type or,
// with optim.state = "bf16", in bf16. Rules compute in the parameter's type: they read a piece, change it, and hand it
// back. In bf16 handing back rounds stochastically (kernels/bf16_rounding.h), by random bits that are a function of the
// run's seed, the moment's name, the step and the element: a resumed run and another machine get the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "base/rng.h"
#include "config/run_config.h"
#include "model/parameter.h"

namespace thinpipe {

class Moment {
 public:
  // Starts at 0. `name` and `shape` as in StateTensor.
  Moment(const Parameter& parameter, const std::string& name, at::IntArrayRef shape, StateFormat format, uint64_t seed);

  // Elements [first, first + count), row-major, in the parameter's type: (count). A view of the moment, or a copy of a
  // moment in bf16.
  at::Tensor read(int64_t first, int64_t count) const;
  // Takes back what read() has given, after step `step` has changed it. Nothing is left to do for a view.
  void keep(const at::Tensor& numbers, int64_t first, int64_t step);

  // All of it in the parameter's type, with its shape: for a change of coordinates. take_over() rounds to nearest:
  // unlike a step, which may change a number by less than bf16 can hold, this gives every number a new value.
  at::Tensor whole() const { return stored_.to(type_); }
  void take_over(const at::Tensor& numbers) { stored_.copy_(numbers); }

  // As it is kept, to be saved and restored in place.
  const at::Tensor& stored() const { return stored_; }

 private:
  at::ScalarType type_;  // the parameter's
  CounterRng rng_;
  at::Tensor stored_;
};

}  // namespace thinpipe
