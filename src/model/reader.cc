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

// Reads coordinates, in two forms that compute the same function. The direct form is the naive twin, and it is cheaper
// for a microbatch of few tokens (generation).
class SubspaceReader final : public StreamReader {
 public:
  SubspaceReader(const ModelConfig& config, ReaderParameters parameters, bool wide_gradient)
      : eps_(config.norm_eps),
        d_(config.d),
        split_(config.subspace.norm == NormForm::kSplit),
        wide_gradient_(wide_gradient),
        gain_(*parameters.gain),
        anchor_gain_(split_ ? *parameters.anchor_gain : *parameters.gain),
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
    const auto distinct = static_cast<double>(context.anchors->e.size(0));
    return distinct < distinct_where_direct_is_cheaper(rows, static_cast<double>(d_), k);
  }

  // ---- direct: x = c U^T + e, norm, product ----

  at::Tensor forward_direct(const BlockContext& context, ReadPass& pass) const {
    const auto e = context.anchors->per_row();
    if (split_) {
      pass.x = context.products.multiply(pass.stream, context.u->t());
      auto stream_part = ops::rms_norm(pass.x, gain_.value, eps_);
      auto anchor_part = ops::rms_norm(e, anchor_gain_.value, eps_);
      pass.h = stream_part.h.add_(anchor_part.h);
      pass.a = std::move(stream_part.s);
      pass.b = std::move(anchor_part.s);
    } else {
      pass.x = context.products.multiply_add(e, pass.stream, context.u->t());
      auto normed = ops::rms_norm(pass.x, gain_.value, eps_);
      pass.h = std::move(normed.h);
      pass.a = std::move(normed.s);
    }
    return context.products.multiply(pass.h, weight_.value);
  }

  void backward_direct(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) {
    context.products.accumulate(weight_.grad, pass.h.t(), dy);
    const auto dh = context.products.multiply(dy, weight_.value.t());
    auto dx = at::zeros_like(pass.x);
    ops::rms_norm_backward(dh, pass.x, pass.a, gain_.value, dx, gain_.grad);
    auto& anchors = *context.anchors;
    auto de = dx;  // joint: e and c U^T have the same gradient
    if (split_) {
      de = at::zeros_like(pass.x);
      ops::rms_norm_backward(dh, anchors.per_row(), pass.b, anchor_gain_.value, de, anchor_gain_.grad);
    }
    if (anchors.trainable()) anchors.d_e.index_add_(0, anchors.tokens.inverse, de);
    if (wide_gradient_) {
      grad.add_(dx);
    } else {
      context.products.accumulate(grad, dx, *context.u);
    }
  }

  // ---- anchor table: Y = a o (c M) + b o table[token] ----

  at::Tensor forward_table(const BlockContext& context, ReadPass& pass) const {
    const auto& anchors = *context.anchors;
    const auto& c = pass.stream;
    const auto own_squared = c.square().sum(1);
    const auto scale = [&](const at::Tensor& squared) {
      return (squared / static_cast<double>(d_)).add_(eps_).rsqrt_();
    };
    if (split_) {
      pass.a = scale(own_squared);
      pass.b = scale(anchors.squared);
    } else {
      pass.a = scale(own_squared + (c * anchors.coordinates).sum(1).mul_(2) + anchors.squared);
      pass.b = pass.a;
    }
    const auto gain = gain_.value.unsqueeze(1), anchor_gain = anchor_gain_.value;
    pass.m = context.products.multiply((*context.u * gain).t(), weight_.value);      // (k, n)
    pass.table = context.products.multiply(anchors.e * anchor_gain, weight_.value);  // (u, n)
    auto y = context.products.multiply(c, pass.m);
    ops::table_read_(y, pass.a, pass.b, pass.table, anchors.tokens);
    if (anchors.positions.defined()) {
      pass.p_table = context.products.multiply(anchors.positions * anchor_gain, weight_.value);  // (T, n)
      const int64_t length = anchors.positions.size(0);
      y.view({-1, length, y.size(1)}).add_(pass.p_table * pass.b.view({-1, length, 1}));
    }
    return y;
  }

  void backward_table(const at::Tensor& dy, const BlockContext& context, const ReadPass& pass, at::Tensor& grad) {
    TP_CHECK(!wide_gradient_, "the anchor table has no wide gradient");
    auto& anchors = *context.anchors;
    const auto& c = pass.stream;
    const auto& products = context.products;
    const auto pulled = products.multiply(dy, pass.m.t());  // (BT, k)
    auto [anchor_dots, d_table] = ops::table_read_backward(dy, pass.b, pass.table, anchors.tokens);
    at::Tensor d_p_table;
    if (pass.p_table.defined()) {
      const int64_t length = pass.p_table.size(0), n = dy.size(1);
      const auto by_position = dy.view({-1, length, n});
      anchor_dots.view({-1, length}).add_((by_position * pass.p_table).sum(2));
      d_p_table = (by_position * pass.b.view({-1, length, 1})).sum(0);
    }
    grad.addcmul_(pulled, pass.a.unsqueeze(1));
    scales_backward((c * pulled).sum(1), anchor_dots, context, pass, grad);
    weights_backward(products.multiply((c * pass.a.unsqueeze(1)).t(), dy), d_table, d_p_table, context);
    if (anchors.trainable()) {
      anchors.d_e.add_(products.multiply(d_table, weight_.value.t()).mul_(anchor_gain_.value));
    }
  }

  // Through a = (||.||^2 / d + eps)^(-1/2), and b in the same way: d(squared) = -1/2 scale^3 / d * d(scale).
  void scales_backward(const at::Tensor& da, const at::Tensor& db, const BlockContext& context, const ReadPass& pass,
                       at::Tensor& grad) {
    auto& anchors = *context.anchors;
    const double factor = -0.5 / static_cast<double>(d_);
    const auto& c = pass.stream;
    if (split_) {
      grad.addcmul_(c, (da * pass.a.pow(3)).mul_(2 * factor).unsqueeze(1));
      if (anchors.trainable()) anchors.d_squared.add_((db * pass.b.pow(3)).mul_(factor));
      return;
    }
    const auto d_squared = (da + db).mul_(pass.a.pow(3)).mul_(factor);  // of ||c||^2 + 2 c . eU + ||e||^2
    const auto doubled = (d_squared * 2).unsqueeze(1);
    grad.addcmul_(c + anchors.coordinates, doubled);
    if (anchors.trainable()) {
      anchors.d_coordinates.addcmul_(c, doubled);
      anchors.d_squared.add_(d_squared);
    }
  }

  // Y depends on W only through diag(g) W. X = U dM + e^T dTable is the gradient of that product and gives those of W
  // and g.
  void weights_backward(const at::Tensor& dm, const at::Tensor& d_table, const at::Tensor& d_p_table,
                        const BlockContext& context) {
    const auto& anchors = *context.anchors;
    const auto& products = context.products;
    auto x = products.multiply(*context.u, dm);  // (d, n)
    if (split_) {
      ops::gain_product_backward(x, weight_.value, gain_.value, weight_.grad, gain_.grad);
      x = products.multiply(anchors.e.t(), d_table);
    } else {
      products.accumulate(x, anchors.e.t(), d_table);
    }
    if (d_p_table.defined()) products.accumulate(x, anchors.positions.t(), d_p_table);
    ops::gain_product_backward(x, weight_.value, anchor_gain_.value, weight_.grad, anchor_gain_.grad);
  }

  double eps_;
  int64_t d_;
  bool split_;
  bool wide_gradient_;
  Parameter& gain_;
  Parameter& anchor_gain_;  // gain_ itself when joint
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
