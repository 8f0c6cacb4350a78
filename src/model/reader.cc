#include "model/reader.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/result.h"
#include "config/model_spec.h"

namespace thinpipe {
namespace {

// Reads a stream that is x itself: RMSNorm, then one product.
class DenseReader final : public StreamReader {
 public:
  DenseReader(const ModelConfig& config, ReaderParameters parameters)
      : eps_(config.norm_eps), gain_(*parameters.gain), weight_(*parameters.weight) {}

  at::Tensor forward(const at::Tensor& stream, const BlockContext& context, ReadPass& pass) const override {
    auto normed = ops::rms_norm(stream, gain_.value, eps_);
    pass.stream = stream;
    pass.h = std::move(normed.h);
    pass.scale = std::move(normed.s);
    return context.products.multiply(pass.h, weight_.value);
  }

  void backward(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) override {
    context.products.accumulate(weight_.grad, pass.h.t(), dy);
    const auto dh = context.products.multiply(dy, weight_.value.t());
    ops::rms_norm_backward(dh, pass.stream, pass.scale, gain_.value, grad, gain_.grad);
  }

 private:
  double eps_;
  Parameter& gain_;
  Parameter& weight_;
};

// Reads coordinates, in two forms that compute the same function. The direct form is the naive twin, and it is cheaper
// for a microbatch of few tokens (generation).
class SubspaceReader final : public StreamReader {
 public:
  SubspaceReader(const ModelConfig& config, ReaderParameters parameters, bool wide_gradient)
      : eps_(config.norm_eps),
        d_(config.d),
        wide_gradient_(wide_gradient),
        gain_(*parameters.gain),
        weight_(*parameters.weight) {}

  at::Tensor forward(const at::Tensor& c, const BlockContext& context, ReadPass& pass) const override {
    pass.stream = c;
    return use_table(context, c) ? forward_table(context, pass) : forward_direct(context, pass);
  }

  void backward(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) override {
    pass.m.defined() ? backward_table(dy, context, pass, grad) : backward_direct(dy, context, pass, grad);
  }

 private:
  bool use_table(const BlockContext& context, const at::Tensor& c) const {
    if (wide_gradient_ || context.form == InputForm::kDirect) return false;
    if (context.form == InputForm::kTable) return true;
    const auto rows = static_cast<double>(c.size(0)), k = static_cast<double>(c.size(1));
    const auto distinct = static_cast<double>(context.anchors->distinct());
    return distinct < distinct_where_direct_is_cheaper(rows, static_cast<double>(d_), k);
  }

  // ---- direct: x = c U^T + e, norm, product ----

  at::Tensor forward_direct(const BlockContext& context, ReadPass& pass) const {
    pass.x = context.products.multiply_add(context.anchors->per_row(), pass.stream, context.u->t());
    auto normed = ops::rms_norm(pass.x, gain_.value, eps_);
    pass.h = std::move(normed.h);
    pass.scale = std::move(normed.s);
    return context.products.multiply(pass.h, weight_.value);
  }

  void backward_direct(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) {
    context.products.accumulate(weight_.grad, pass.h.t(), dy);
    const auto dh = context.products.multiply(dy, weight_.value.t());
    auto dx = at::zeros_like(pass.x);  // also the gradient of e
    ops::rms_norm_backward(dh, pass.x, pass.scale, gain_.value, dx, gain_.grad);
    if (context.anchors->trainable()) context.anchors->add_gradient(dx);
    if (wide_gradient_) {
      grad.add_(dx);
    } else {
      context.products.accumulate(grad, dx, *context.u);
    }
  }

  // ---- anchor table: Y = scale o (c M + the sum over the parts of table[row]) ----

  at::Tensor forward_table(const BlockContext& context, ReadPass& pass) const {
    const auto& anchors = *context.anchors;
    const auto& c = pass.stream;
    const auto squared = c.square().sum(1) + (c * anchors.coordinates).sum(1).mul_(2) + anchors.squared;
    pass.scale = (squared / static_cast<double>(d_)).add_(eps_).rsqrt_();
    pass.m = context.products.multiply((*context.u * gain_.value.unsqueeze(1)).t(), weight_.value);  // (k, n)
    auto y = context.products.multiply(c, pass.m);
    for (const auto& part : anchors.parts) {
      pass.tables.push_back(context.products.multiply(part.e * gain_.value, weight_.value));  // (u, n)
      const bool is_first = pass.tables.size() == 1;
      ops::table_read_(y, is_first ? pass.scale : at::ones_like(pass.scale), pass.scale, pass.tables.back(),
                       part.index);
    }
    return y;
  }

  void backward_table(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) {
    TP_CHECK(!wide_gradient_, "the anchor table has no wide gradient");
    auto& anchors = *context.anchors;
    const auto& c = pass.stream;
    const auto& products = context.products;
    const auto pulled = products.multiply(dy, pass.m.t());  // (BT, k)
    auto d_scale = (c * pulled).sum(1);
    // Y depends on W only through diag(g) W. X = U dM + the sum of e^T dTable is the gradient of that product and gives
    // those of W and g.
    auto x = products.multiply(*context.u, products.multiply((c * pass.scale.unsqueeze(1)).t(), dy));  // (d, n)
    for (size_t i = 0; i < anchors.parts.size(); ++i) {
      auto& part = anchors.parts[i];
      const auto [dots, d_table] = ops::table_read_backward(dy, pass.scale, pass.tables[i], part.index);
      d_scale.add_(dots);
      products.accumulate(x, part.e.t(), d_table);
      if (part.d_e.defined()) part.d_e.add_(products.multiply(d_table, weight_.value.t()).mul_(gain_.value));
    }
    ops::gain_product_backward(x, weight_.value, gain_.value, weight_.grad, gain_.grad);
    grad.addcmul_(pulled, pass.scale.unsqueeze(1));
    scale_backward(d_scale, context, pass, grad);
  }

  // Through scale = (||c U^T + e||^2 / d + eps)^(-1/2): d(squared) = -1/2 scale^3 / d * d(scale).
  void scale_backward(const at::Tensor& d_scale, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) {
    auto& anchors = *context.anchors;
    const auto& c = pass.stream;
    // of ||c||^2 + 2 c . eU + ||e||^2
    const auto d_squared = (d_scale * pass.scale.pow(3)).mul_(-0.5 / static_cast<double>(d_));
    const auto doubled = (d_squared * 2).unsqueeze(1);
    grad.addcmul_(c + anchors.coordinates, doubled);
    if (anchors.trainable()) {
      anchors.d_coordinates.addcmul_(c, doubled);
      anchors.d_squared.add_(d_squared);
    }
  }

  double eps_;
  int64_t d_;
  bool wide_gradient_;
  Parameter& gain_;
  Parameter& weight_;
};

}  // namespace

std::unique_ptr<StreamReader> make_dense_reader(const ModelConfig& config, ReaderParameters parameters) {
  return std::make_unique<DenseReader>(config, parameters);
}

std::unique_ptr<StreamReader> make_subspace_reader(const ModelConfig& config, ReaderParameters parameters,
                                                   bool wide_gradient) {
  return std::make_unique<SubspaceReader>(config, parameters, wide_gradient);
}

}  // namespace thinpipe
