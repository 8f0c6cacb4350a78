// A stage's trainable tensors and their gradients, by name. config/model_spec.h says which tensors there are and how
// they are initialised.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>

#include "config/model_spec.h"

namespace thinpipe {

struct Parameter : ParameterSpec {
  at::Tensor value;
  at::Tensor grad;  // same shape; backward passes add to it; undefined in a model that is not trained
};

// Owns the parameters; references stay valid while it exists.
class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // Takes ownership of `value`, which must have the spec's shape.
  Parameter& add(const ParameterSpec& spec, at::Tensor value, bool with_grad = true);
  // A parameter of that name must exist.
  Parameter& at(const std::string& name);
  // Null if there is none.
  Parameter* find(const std::string& name);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  void zero_grad();
  int64_t element_count() const;

 private:
  std::deque<Parameter> parameters_;
};

}  // namespace thinpipe
