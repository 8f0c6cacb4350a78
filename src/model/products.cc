#include "model/products.h"

#include <ATen/ATen.h>

namespace thinpipe {

at::ScalarType storage_type(Precision precision) { return precision == Precision::kFloat64 ? at::kDouble : at::kFloat; }

at::Tensor Products::operand(const at::Tensor& a) const { return round_ ? a.to(at::kBFloat16).to(a.scalar_type()) : a; }

at::Tensor Products::multiply(const at::Tensor& a, const at::Tensor& b) const { return at::mm(operand(a), operand(b)); }

at::Tensor Products::multiply_add(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) const {
  return at::addmm(c, operand(a), operand(b));
}

void Products::accumulate(at::Tensor& c, const at::Tensor& a, const at::Tensor& b) const {
  c.addmm_(operand(a), operand(b));
}

}  // namespace thinpipe
