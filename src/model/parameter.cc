#include "model/parameter.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/result.h"

namespace thinpipe {

Parameter& ParameterSet::add(const ParameterSpec& spec, at::Tensor value, bool with_grad) {
  TP_CHECK(find(spec.name) == nullptr, "two parameters named {}", spec.name);
  TP_CHECK(value.sizes() == at::IntArrayRef(spec.shape), "{} does not have the shape of its description", spec.name);
  auto grad = with_grad ? at::zeros_like(value) : at::Tensor();
  return parameters_.emplace_back(Parameter{spec, std::move(value), std::move(grad)});
}

Parameter& ParameterSet::at(const std::string& name) {
  auto* parameter = find(name);
  TP_CHECK(parameter != nullptr, "no parameter named {}", name);
  return *parameter;
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
