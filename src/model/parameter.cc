#include "model/parameter.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/result.h"
#include "base/rng.h"
#include "tensor/fill.h"

namespace thinpipe {

Parameter& ParameterSet::add(std::string name, ParameterKind kind, at::Tensor value,
                             std::vector<int64_t> column_blocks) {
  TP_CHECK(find(name) == nullptr, "two parameters named {}", name);
  auto grad = at::zeros_like(value);
  return parameters_.emplace_back(
      Parameter{std::move(name), kind, std::move(column_blocks), 0, std::move(value), std::move(grad)});
}

Parameter& ParameterSet::add_random(std::string name, ParameterKind kind, at::IntArrayRef shape, double std,
                                    std::vector<int64_t> column_blocks) {
  const CounterRng rng(seed_, name);
  return add(std::move(name), kind, fill_random(rng, shape, std, options_), std::move(column_blocks));
}

Parameter& ParameterSet::add_value(std::string name, ParameterKind kind, at::Tensor value) {
  return add(std::move(name), kind, std::move(value), {});
}

Parameter& ParameterSet::add_ones(std::string name, ParameterKind kind, at::IntArrayRef shape) {
  return add(std::move(name), kind, at::ones(shape, options_), {});
}

Parameter* ParameterSet::find(const std::string& name) {
  for (auto& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

void ParameterSet::zero_grad() {
  for (auto& parameter : parameters_) parameter.grad.zero_();
}

int64_t ParameterSet::element_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters_) count += parameter.value.numel();
  return count;
}

}  // namespace thinpipe
