// Matrix products at the run's precision. bf16 rounds both operands to bf16 and multiplies in float32, which gives what
// bf16 hardware computes on machines without it.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/run_config.h"

namespace thinpipe {

// The type in which parameters, moments and activations are stored.
at::ScalarType storage_type(Precision precision);

class Products {
 public:
  explicit Products(Precision precision) : round_(precision == Precision::kBf16) {}

  at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) const;                           // a b
  at::Tensor multiply_add(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) const;  // c + a b
  void accumulate(at::Tensor& c, const at::Tensor& a, const at::Tensor& b) const;                // c += a b
  // The operand, rounded as the products round it, for code that multiplies in other ways.
  at::Tensor operand(const at::Tensor& a) const;

 private:
  bool round_;
};

}  // namespace thinpipe
