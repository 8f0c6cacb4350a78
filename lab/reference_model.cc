#include "lab/reference_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace thinpipe {
namespace {

at::Tensor norm(const at::Tensor& x, double eps) { return x / (x.square().mean(-1, true) + eps).sqrt(); }

at::Tensor angles(int64_t positions, int64_t width, double base, const at::TensorOptions& options) {
  const auto frequency = at::exp(at::arange(0, width, 2, options) * (-std::log(base) / static_cast<double>(width)));
  return at::outer(at::arange(positions, options), frequency);
}

// (B, heads, T, head_dim)
at::Tensor rotate(const at::Tensor& x, double base) {
  const auto angle = angles(x.size(2), x.size(3), base, x.options());
  const auto parts = x.chunk(2, -1);
  return at::cat({parts[0] * angle.cos() - parts[1] * angle.sin(), parts[1] * angle.cos() + parts[0] * angle.sin()},
                 -1);
}

class Reference {
 public:
  Reference(const ModelConfig& config, const TensorMap& weights, const at::Tensor& t_fixed)
      : config_(config), weights_(weights), t_fixed_(t_fixed) {}

  // The sum of the tokens' losses of one microbatch, with an autograd graph.
  at::Tensor loss_sum(const at::Tensor& tokens) {
    const int64_t length = tokens.size(1) - 1;
    const auto ids = tokens.narrow(1, 0, length);
    int64_t group = 0;
    auto e = anchor(group, ids);
    auto x = config_.is_subspace() ? weights_.at("token_table").index({ids}) + e
                                   : weights_.at("embedding").index({ids}) + position_part(length);
    for (int64_t block = 0; block < config_.blocks; ++block) {
      if (block > 0 && group_of(block) != group && block <= config_.first_dense_block()) {
        group = group_of(block);
        const auto next = anchor(group, ids);
        x = x - e + next;  // the same coordinates with another anchor
        e = next;
      }
      if (block == std::min(config_.first_dense_block(), config_.blocks - 1)) {
        tap_ = x;
        tap_.retain_grad();
      }
      x = run_block(x, block);
    }
    const auto logits = (norm(x, config_.norm_eps) * weights_.at("final_norm")).matmul(weights_.at("head"));
    return at::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, length).flatten(), {}, at::Reduction::Sum);
  }

  const at::Tensor& tap() const { return tap_; }  // has its gradient after the backward pass

 private:
  at::Tensor position_part(int64_t length) const {
    const auto options = weights_.at("head").options().requires_grad(false);
    if (config_.positions == Positions::kRope) return at::zeros({}, options);
    const auto angle = angles(length, config_.d, 10000.0, options);
    return config_.position_scale * at::cat({angle.sin(), angle.cos()}, -1);
  }

  int64_t group_of(int64_t block) const {
    if (config_.subspace.anchors == Anchors::kFixed) return 0;
    int64_t group = 0, end = 0;
    for (const int64_t blocks : config_.subspace.anchor_groups) {
      end += blocks;
      if (block < end) return group;
      ++group;
    }
    return 0;
  }

  at::Tensor anchor(int64_t group, const at::Tensor& ids) const {
    if (!config_.is_subspace()) return {};
    auto table = t_fixed_;
    if (config_.subspace.anchors == Anchors::kStage) {
      const auto trained = trained_table("anchors", group);
      table = config_.subspace.anchor_rank > 0 ? t_fixed_ + trained : trained;
    }
    auto e = table.index({ids}) + position_part(ids.size(1));
    if (config_.subspace.previous == Previous::kTable) {
      const auto previous = trained_table("previous", group);
      for (int64_t at = 0; at < ids.size(1); ++at) {  // the first token is its own predecessor
        e.select(1, at).add_(previous.index({ids.select(1, std::max<int64_t>(at - 1, 0))}));
      }
    }
    return e;
  }

  // (V, d)
  at::Tensor trained_table(const char* kind, int64_t group) const {
    const auto name = fmt::format("{}.{}", kind, group);
    const auto& rows = weights_.at(name);
    return config_.subspace.anchor_rank > 0 ? rows.matmul(weights_.at(name + ".map")) : rows;
  }

  const at::Tensor& weight(int64_t block, const char* name) const {
    return weights_.at(fmt::format("blocks.{}.{}", block, name));
  }

  at::Tensor run_block(at::Tensor x, int64_t block) const {
    const int64_t sequences = x.size(0), length = x.size(1), dim = config_.head_dim();
    const auto parts = (norm(x, config_.norm_eps) * weight(block, "attn_norm"))
                           .matmul(weight(block, "wqkv"))
                           .split_with_sizes({config_.heads * dim, config_.kv_heads * dim, config_.kv_heads * dim}, -1);
    const auto heads = [&](const at::Tensor& columns) {
      return columns.reshape({sequences, length, -1, dim}).transpose(1, 2);
    };
    auto q = heads(parts[0]), k = heads(parts[1]), v = heads(parts[2]);
    if (config_.qk_norm) {
      q = norm(q, config_.norm_eps) * weight(block, "q_norm");
      k = norm(k, config_.norm_eps) * weight(block, "k_norm");
    }
    if (config_.positions == Positions::kRope) {
      q = rotate(q, config_.rope_base);
      k = rotate(k, config_.rope_base);
    }
    const int64_t group = config_.heads / config_.kv_heads;
    k = k.repeat_interleave(group, 1);
    v = v.repeat_interleave(group, 1);
    const auto future = at::ones({length, length}, at::kBool).triu(1);
    const auto scores =
        (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(dim))).masked_fill(future, -INFINITY);
    const auto attended = scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2);
    x = x + attended.matmul(weight(block, "wp1"));
    const auto gate_up =
        (norm(x, config_.norm_eps) * weight(block, "mlp_norm")).matmul(weight(block, "wgu")).chunk(2, -1);
    return x + (at::silu(gate_up[0]) * gate_up[1]).matmul(weight(block, "wp2"));
  }

  const ModelConfig& config_;
  const TensorMap& weights_;
  at::Tensor t_fixed_;
  at::Tensor tap_;
};

}  // namespace

TensorMap materialise(const ModelConfig& config, const TensorMap& parameters, const at::Tensor& u) {
  TensorMap weights;
  for (const auto& [name, value] : parameters) {
    if (name == "embedding_coordinates") {
      weights["token_table"] = value.mm(u.t());
    } else if (config.is_subspace() && (name.ends_with(".a1") || name.ends_with(".a2"))) {
      weights[name.substr(0, name.size() - 2) + "wp" + name.back()] = value.mm(u.t());
    } else {
      weights[name] = value.clone();
    }
  }
  return weights;
}

ReferenceResult reference_gradients(const ModelConfig& config, const TensorMap& weights, const at::Tensor& t_fixed,
                                    const std::vector<at::Tensor>& tokens, double loss_scale) {
  TensorMap leaves;
  for (const auto& [name, value] : weights) leaves[name] = value.detach().clone().set_requires_grad(true);
  Reference reference(config, leaves, t_fixed);
  ReferenceResult result{0, {}, at::zeros({config.d, config.d}, weights.at("head").options())};
  for (const auto& batch : tokens) {
    const auto loss = reference.loss_sum(batch);
    result.loss_sum += loss.item<double>();
    (loss * loss_scale).backward();
    const auto g = reference.tap().grad().flatten(0, 1);
    result.second_moment += g.t().mm(g);
  }
  for (const auto& [name, leaf] : leaves) {
    result.gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf).detach();
  }
  return result;
}

}  // namespace thinpipe
