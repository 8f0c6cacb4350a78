#include "model/head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/kernels/ops.h"

namespace thinpipe {
namespace {

template <class Body>
void for_each_slice(int64_t rows, const Body& body) {
  for (int64_t first = 0; first < rows; first += kHeadRowsAtOnce) body(first, std::min(kHeadRowsAtOnce, rows - first));
}

}  // namespace

Head::Head(const ModelConfig& config, ParameterSet& parameters)
    : norm_eps_(config.norm_eps), gain_(parameters.at("final_norm")), weight_(parameters.at("head")) {}

at::Tensor Head::logits(const at::Tensor& x, const Products& products) const {
  return products.multiply(ops::rms_norm(x, gain_.value, norm_eps_).h, weight_.value);
}

double Head::loss(const at::Tensor& x, const at::Tensor& targets, const Products& products) const {
  double total = 0;
  for_each_slice(x.size(0), [&](int64_t first, int64_t rows) {
    auto slice = logits(x.narrow(0, first, rows), products);
    total += ops::cross_entropy_(slice, targets.narrow(0, first, rows), /*gradient=*/false, 0);
  });
  return total;
}

double Head::loss_and_gradient(const at::Tensor& x, const at::Tensor& targets, const Products& products, double scale,
                               at::Tensor& grad) {
  const auto normed = ops::rms_norm(x, gain_.value, norm_eps_);
  const auto dh = at::empty_like(x);
  double total = 0;
  for_each_slice(x.size(0), [&](int64_t first, int64_t rows) {
    const auto h = normed.h.narrow(0, first, rows);
    auto slice = products.multiply(h, weight_.value);  // (rows, V), then its gradient in place
    total += ops::cross_entropy_(slice, targets.narrow(0, first, rows), /*gradient=*/true, scale);
    products.accumulate(weight_.grad, h.t(), slice);
    dh.narrow(0, first, rows).copy_(products.multiply(slice, weight_.value.t()));
  });
  grad = at::zeros_like(x);
  ops::rms_norm_backward(dh, x, normed.s, gain_.value, grad, gain_.grad);
  return total;
}

}  // namespace thinpipe
