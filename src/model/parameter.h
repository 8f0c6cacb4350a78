// A stage's trainable tensors and their gradients, by name. A parameter's first bits depend on (seed, name) alone, so
// every cut of one model starts from the same weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace thinpipe {

// What the optimiser needs to know to choose a rule.
enum class ParameterKind {
  kMatrix,                // of a block, (in, out); muon's
  kEmbedding,             // (V, d)
  kHead,                  // (d, V)
  kGain,                  // of a norm; never decayed
  kCoordinates,           // A1, A2 of a subspace block: (n, k), standing for A U^T (n, d)
  kEmbeddingCoordinates,  // E: (V, k), standing for E U^T
};

struct Parameter {
  std::string name;  // "blocks.3.wqkv"
  ParameterKind kind;
  // Widths of the matrices that stand side by side in `value` (q | k | v): muon takes each by itself. Empty: one.
  std::vector<int64_t> column_blocks;
  int64_t full_width = 0;  // coordinates only: d, the width of what they stand for
  at::Tensor value;
  at::Tensor grad;  // same shape; backward passes add to it
};

// Owns the parameters; references stay valid while it lives.
class ParameterSet {
 public:
  ParameterSet(uint64_t seed, at::TensorOptions options) : seed_(seed), options_(options) {}
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  Parameter& add_random(std::string name, ParameterKind kind, at::IntArrayRef shape, double std,
                        std::vector<int64_t> column_blocks = {});
  Parameter& add_value(std::string name, ParameterKind kind, at::Tensor value);
  Parameter& add_ones(std::string name, ParameterKind kind, at::IntArrayRef shape);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  // Null when there is none of that name.
  Parameter* find(const std::string& name);
  void zero_grad();
  int64_t element_count() const;
  const at::TensorOptions& options() const { return options_; }

 private:
  Parameter& add(std::string name, ParameterKind kind, at::Tensor value, std::vector<int64_t> column_blocks);

  uint64_t seed_;
  at::TensorOptions options_;
  std::deque<Parameter> parameters_;
};

}  // namespace thinpipe
