// A stage's trainable tensors and their gradients, by name. Which there are, and what they start from, is said by
// config/model_spec.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>

#include "config/model_spec.h"

namespace thinpipe {

struct Parameter : ParameterSpec {
  at::Tensor value;
  at::Tensor grad;  // same shape; backward passes add to it
};

// Owns the parameters; references stay valid while it lives.
class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  // `value` must have the spec's shape and is taken over, not copied.
  Parameter& add(const ParameterSpec& spec, at::Tensor value);
  // There must be one of that name.
  Parameter& at(const std::string& name);
  // Null when there is none.
  Parameter* find(const std::string& name);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  void zero_grad();
  int64_t element_count() const;

 private:
  std::deque<Parameter> parameters_;
};

}  // namespace thinpipe
