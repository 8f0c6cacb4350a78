// Parameters of any shape for tests of the update rules, drawn as a model's are.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "model/fill.h"
#include "model/parameter.h"

namespace thinpipe {

inline const at::TensorOptions kDoubles = at::TensorOptions().dtype(at::kDouble);

inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t stream) {
  return fill_random(CounterRng(5, stream), shape, 1.0, kDoubles);
}

class RandomParameters : public ParameterSet {
 public:
  RandomParameters(uint64_t seed, at::TensorOptions options) : seed_(seed), options_(options) {}

  Parameter& add_random(const std::string& name, ParameterKind kind, std::vector<int64_t> shape, double std,
                        std::vector<int64_t> column_blocks = {}) {
    auto value = fill_random(CounterRng(seed_, name), shape, std, options_);
    return add({name, "unit", kind, std::move(shape), std::move(column_blocks)}, std::move(value));
  }
  Parameter& add_ones(const std::string& name, ParameterKind kind, std::vector<int64_t> shape) {
    auto value = at::ones(shape, options_);
    return add({name, "unit", kind, std::move(shape)}, std::move(value));
  }

 private:
  uint64_t seed_;
  at::TensorOptions options_;
};

}  // namespace thinpipe
