// Reading a stream that is x itself: RMSNorm, then one product.
#include <ATen/ATen.h>

#include "model/reader.h"

namespace thinpipe {
namespace {

class DenseReader final : public StreamReader {
 public:
  DenseReader(const ModelConfig& config, ReaderParameters parameters)
      : eps_(config.norm_eps), gain_(*parameters.gain), weight_(*parameters.weight) {}

  at::Tensor forward(const at::Tensor& stream, const BlockContext& context, ReadPass& pass) const override {
    auto normed = ops::rms_norm(stream, gain_.value, eps_);
    pass.stream = stream;
    pass.h = std::move(normed.h);
    pass.a = std::move(normed.s);
    return context.products.multiply(pass.h, weight_.value);
  }

  void backward(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) override {
    context.products.accumulate(weight_.grad, pass.h.t(), dy);
    const auto dh = context.products.multiply(dy, weight_.value.t());
    ops::rms_norm_backward(dh, pass.stream, pass.a, gain_.value, grad, gain_.grad);
  }

 private:
  double eps_;
  Parameter& gain_;
  Parameter& weight_;
};

}  // namespace

std::unique_ptr<StreamReader> make_dense_reader(const ModelConfig& config, ReaderParameters parameters) {
  return std::make_unique<DenseReader>(config, parameters);
}

}  // namespace thinpipe
