#include "lab/literal_optimizer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/result.h"
#include "lab/exactness.h"

namespace thinpipe {

LiteralTraining::LiteralTraining(const RunConfig& config, TensorMap weights, at::Tensor t_fixed, Basis basis,
                                 LiteralRule rule)
    : config_(config),
      weights_(std::move(weights)),
      t_fixed_(std::move(t_fixed)),
      basis_(std::move(basis)),
      rule_(rule) {
  TP_CHECK(config.optim.schedule == LrSchedule::kConstant, "the literal form supports no schedule but a warm-up");
  for (const auto& [name, weight] : weights_) {
    m_[name] = at::zeros_like(weight);
    const bool per_row = confined(name) && rule_ == LiteralRule::kRowAdamw;
    v_[name] = per_row ? at::zeros({weight.size(0), 1}, weight.options()) : at::zeros_like(weight);
  }
  second_moment_ = at::zeros({config.model.d, config.model.d}, basis_.u.options());
}

bool LiteralTraining::confined(const std::string& name) const {
  if (name == "token_table") return true;
  if (!name.ends_with(".wp1") && !name.ends_with(".wp2")) return false;
  return std::stoll(name.substr(std::string("blocks.").size())) < config_.model.first_dense_block();
}

double LiteralTraining::step(int64_t number, const std::vector<at::Tensor>& tokens) {
  int64_t count = 0;
  for (const auto& batch : tokens) count += batch.size(0) * (batch.size(1) - 1);
  auto result = reference_gradients(config_.model, weights_, t_fixed_, tokens, 1.0 / static_cast<double>(count));
  double squared_norm = 0;
  for (auto& [name, gradient] : result.gradients) {
    if (confined(name)) gradient = project(gradient);
    squared_norm += gradient.square().sum().item<double>();
  }
  const double norm = std::sqrt(squared_norm), limit = config_.optim.clip;
  const double factor = limit > 0 && norm > limit ? limit / norm : 1;
  for (const auto& [name, gradient] : result.gradients) update(name, gradient * factor, number);
  const int64_t every = config_.model.subspace.update_every;
  if (every > 0 && (number + 1) % every == 0) change_over();
  second_moment_ += factor * factor * result.second_moment;  // as applied; an updating step counts for the next update
  return result.loss_sum / static_cast<double>(count);
}

void LiteralTraining::update(const std::string& name, const at::Tensor& gradient, int64_t number) {
  const auto& optim = config_.optim;
  auto &w = weights_.at(name), &m = m_.at(name), &v = v_.at(name);
  const bool per_row = confined(name) && rule_ == LiteralRule::kRowAdamw;
  const auto count = static_cast<double>(number + 1), warmup = static_cast<double>(optim.warmup);
  const double lr = count < warmup ? optim.lr * count / warmup : optim.lr;
  const double decay = name.find("norm") != std::string::npos ? 0.0 : optim.weight_decay;
  m = optim.beta1 * m + (1 - optim.beta1) * gradient;
  const auto square = gradient.square();
  v = optim.beta2 * v + (1 - optim.beta2) * (per_row ? square.mean(1, /*keepdim=*/true) : square);
  const auto m_hat = m / (1 - std::pow(optim.beta1, count));
  const auto v_hat = v / (1 - std::pow(optim.beta2, count));
  w = (1 - lr * decay) * w - lr * m_hat / (v_hat.sqrt() + optim.eps);
}

void LiteralTraining::change_over() {
  const auto &u = basis_.u, &c = second_moment_;
  const auto outside = at::eye(u.size(0), u.options()) - u.mm(u.t());  // I - UU^T
  const auto r = -2 * outside.mm(c).mm(u) / at::linalg_svdvals(c).max();
  const auto moved = u - config_.model.subspace.update_rate * r;
  // The thin QR with a positive diagonal: its triangle is the Cholesky factor of the Gram matrix.
  const auto triangle = at::linalg_cholesky(moved.t().mm(moved), /*upper=*/true);
  basis_ = {moved.mm(at::linalg_inv(triangle)), basis_.version + 1};
  second_moment_.zero_();
  for (auto& [name, weight] : weights_) {
    if (!confined(name)) continue;
    weight = project(weight);
    m_.at(name) = project(m_.at(name));
  }
}

double LiteralTraining::drift() const {
  double worst = 0;
  for (const auto& [name, weight] : weights_) {
    if (!confined(name)) continue;
    const double share = ((weight - project(weight)).norm() / weight.norm()).item<double>();
    if (worse(share, worst)) worst = share;
  }
  return worst;
}

}  // namespace thinpipe
