// The LLaMA that a Hugging Face folder describes, computed the plain way in double: no tensors, no cache, no batch.
// Written from the format's definition; it shares no code with the model that is trained here.
#pragma once

#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "export/llama.h"

namespace thinpipe::test {

class NaiveLlama {
 public:
  NaiveLlama(const LlamaShape& shape, const LlamaValues& values) : shape_(shape) {
    for (const auto& tensor : llama_tensors(shape)) {
      const auto floats = values(tensor.name).take();
      weights_[tensor.name] = Row(floats.begin(), floats.end());
    }
  }

  // Of every position: V logits of the token after it.
  std::vector<std::vector<double>> logits(std::span<const int32_t> ids) const {
    Rows x;  // (T, d)
    for (const int32_t id : ids) {
      const Row& table = weights_.at("model.embed_tokens.weight");
      const auto row = table.begin() + static_cast<ptrdiff_t>(id) * static_cast<ptrdiff_t>(shape_.d);
      x.emplace_back(row, row + static_cast<ptrdiff_t>(shape_.d));
    }
    for (int64_t block = 0; block < shape_.blocks; ++block) {
      const std::string prefix = "model.layers." + std::to_string(block) + ".";
      add(x, attention(normed(x, prefix + "input_layernorm.weight"), prefix + "self_attn."));
      add(x, mlp(normed(x, prefix + "post_attention_layernorm.weight"), prefix + "mlp."));
    }
    return product(normed(x, "model.norm.weight"), "lm_head.weight");
  }

  // ln of the probability of ids[t + 1] after ids[0 .. t], for every t but the last.
  std::vector<double> log_probabilities(std::span<const int32_t> ids) const {
    const auto all = logits(ids);
    std::vector<double> result;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      double largest = all[t][0], sum = 0;
      for (const double logit : all[t]) largest = std::max(largest, logit);
      for (const double logit : all[t]) sum += std::exp(logit - largest);
      result.push_back(all[t][static_cast<size_t>(ids[t + 1])] - largest - std::log(sum));
    }
    return result;
  }

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  static void add(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
    }
  }

  Rows normed(const Rows& x, const std::string& gains) const {
    const Row& g = weights_.at(gains);
    Rows y = x;
    for (Row& row : y) {
      double square = 0;
      for (const double value : row) square += value * value;
      const double scale = 1 / std::sqrt(square / static_cast<double>(row.size()) + shape_.norm_eps);
      for (size_t i = 0; i < row.size(); ++i) row[i] *= scale * g[i];
    }
    return y;
  }

  // x W^T, W (out, in).
  Rows product(const Rows& x, const std::string& name) const {
    const Row& w = weights_.at(name);
    Rows y;
    for (const Row& row : x) {
      Row out(w.size() / row.size(), 0.0);
      for (size_t o = 0; o < out.size(); ++o) {
        for (size_t i = 0; i < row.size(); ++i) out[o] += row[i] * w[o * row.size() + i];
      }
      y.push_back(std::move(out));
    }
    return y;
  }

  // Elements i and i + h/2 of every head turn by position * base^(-2i/h).
  void rotate(Rows& x) const {
    const auto h = static_cast<size_t>(shape_.head_dim());
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t head = 0; head < x[t].size(); head += h) {
        for (size_t i = 0; i < h / 2; ++i) {
          const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(h);
          const double angle = static_cast<double>(t) * std::pow(shape_.rope_base, exponent);
          double& a = x[t][head + i];
          double& b = x[t][head + i + h / 2];
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + a * std::sin(angle);
          a = turned;
        }
      }
    }
  }

  Rows attention(const Rows& x, const std::string& prefix) const {
    const auto h = static_cast<size_t>(shape_.head_dim());
    const auto group = static_cast<size_t>(shape_.heads / shape_.kv_heads);
    Rows q = product(x, prefix + "q_proj.weight"), k = product(x, prefix + "k_proj.weight");
    const Rows v = product(x, prefix + "v_proj.weight");
    rotate(q);
    rotate(k);
    Rows mixed(x.size(), Row(q[0].size(), 0.0));
    for (size_t head = 0; head < static_cast<size_t>(shape_.heads); ++head) {
      const size_t at = head * h, kv = head / group * h;
      for (size_t t = 0; t < x.size(); ++t) {
        Row weights;
        double largest = -INFINITY, sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = 0; i < h; ++i) score += q[t][at + i] * k[s][kv + i];
          weights.push_back(score / std::sqrt(static_cast<double>(h)));
          largest = std::max(largest, weights.back());
        }
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < h; ++i) mixed[t][at + i] += weights[s] / sum * v[s][kv + i];
        }
      }
    }
    return product(mixed, prefix + "o_proj.weight");
  }

  Rows mlp(const Rows& x, const std::string& prefix) const {
    Rows gate = product(x, prefix + "gate_proj.weight");
    const Rows up = product(x, prefix + "up_proj.weight");
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i) gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
    }
    return product(gate, prefix + "down_proj.weight");
  }

  LlamaShape shape_;
  std::map<std::string, Row> weights_;
};

}  // namespace thinpipe::test
