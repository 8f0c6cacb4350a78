// The differentiable operations of a block that are not matrix products, forward and backward, and what the optimizer
// does with whole tensors, as free functions. Each uses the fused CPU kernel if fused() holds, else its ATen twin (any
// device). Tensors are contiguous unless stated otherwise; rows = B*T, and row r of a microbatch has position r % T.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace thinpipe {

struct AttentionShape {
  int64_t sequences;  // B
  int64_t length;     // T
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;

  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
};

struct Normed {
  at::Tensor h;  // (rows, d) = x * s o g
  at::Tensor s;  // (rows)    = 1 / sqrt(mean(x^2) + eps)
};

struct Attended {
  at::Tensor output;  // (rows, heads * head_dim)
  at::Tensor lse;     // (B, heads, T), log-sum-exp of the scaled scores
};

struct RopeTable {
  at::Tensor cos;  // (T, head_dim/2)
  at::Tensor sin;  // (T, head_dim/2)
};

// The distinct tokens of a microbatch and where they occur.
struct TokenIndex {
  at::Tensor unique;   // (u) the ids, ascending
  at::Tensor inverse;  // (rows) the index in `unique` of each row's token
  at::Tensor order;    // (rows) the rows, token by token
  at::Tensor offsets;  // (u + 1) where the rows of each token begin in `order`
};
TokenIndex index_tokens(const at::Tensor& ids);  // (rows) int64

struct TableGradient {
  at::Tensor dots;     // (rows) <dy, table[token]>
  at::Tensor d_table;  // (u, n)
};

RopeTable make_rope_table(int64_t positions, int64_t head_dim, double base, const at::TensorOptions& options);

namespace ops {

// Whether the kernels accept this tensor: float32 or float64, on a CPU.
bool fused(const at::Tensor& tensor);

Normed rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps);
// Adds to dx (rows, d) and to d_gain (d).
void rms_norm_backward(const at::Tensor& dh, const at::Tensor& x, const at::Tensor& s, const at::Tensor& gain,
                       at::Tensor& dx, at::Tensor& d_gain);

// In place on columns [0, heads * head_dim) of `qk`, whose rows may be wider (a view into qkv). inverse: rotates back.
void rope_(const at::Tensor& qk, const RopeTable& table, int64_t heads, int64_t head_dim, bool inverse);

at::Tensor swiglu(const at::Tensor& gate_up);  // (rows, 2m) -> (rows, m)
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

// Causal grouped-query attention over rows of [q | k | v]; query head h reads key/value head h * kv_heads / heads.
Attended attention(const at::Tensor& qkv, const AttentionShape& shape);
at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape);

// Sum of the rows' cross entropies; with `gradient`, logits (rows, V) are replaced by scale * (softmax - one_hot).
// targets: (rows) int64, each in [0, V).
double cross_entropy_(at::Tensor& logits, const at::Tensor& targets, bool gradient, double scale);

// The anchor table's product, Y = a o Z + b o table[token], in place of Z = c M.   y: (rows, n); a, b: (rows)
void table_read_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& table,
                 const TokenIndex& tokens);
TableGradient table_read_backward(const at::Tensor& dy, const at::Tensor& b, const at::Tensor& table,
                                  const TokenIndex& tokens);
// From X = dL/d(diag(g) W): d_weight += diag(g) X, d_gain += rowsum(X o W).
void gain_product_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gain, at::Tensor& d_weight,
                           at::Tensor& d_gain);

// ---- of the optimizer ----

// The sum of the squares, added in double.   x: any contiguous tensor
double squared_sum(const at::Tensor& x);
// Momentum as Muon wants it: m becomes mu m + (1 - mu) factor g. Returns mu m + (1 - mu) factor g with the new m.
//   m, g: (rows, columns)
at::Tensor nesterov_(at::Tensor& m, const at::Tensor& grad, double factor, double mu);
// X X^T, of which only half is computed. x may be any view.   (m, n) -> (m, m)
at::Tensor gram(const at::Tensor& x);
// The inverse of a symmetric, positive definite matrix. Not a number everywhere if it is not one.
at::Tensor inverse_of_positive(const at::Tensor& a);

}  // namespace ops

// The same operations in plain tensor algebra: the fallback, and the naive twin in tests of the kernels.
namespace aten_ops {

Normed rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps);
void rms_norm_backward(const at::Tensor& dh, const at::Tensor& x, const at::Tensor& s, const at::Tensor& gain,
                       at::Tensor& dx, at::Tensor& d_gain);
void rope_(const at::Tensor& qk, const RopeTable& table, int64_t heads, int64_t head_dim, bool inverse);
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);
Attended attention(const at::Tensor& qkv, const AttentionShape& shape);
at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape);
double cross_entropy_(at::Tensor& logits, const at::Tensor& targets, bool gradient, double scale);

void table_read_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& table,
                 const TokenIndex& tokens);
TableGradient table_read_backward(const at::Tensor& dy, const at::Tensor& b, const at::Tensor& table,
                                  const TokenIndex& tokens);
void gain_product_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gain, at::Tensor& d_weight,
                           at::Tensor& d_gain);
double squared_sum(const at::Tensor& x);
at::Tensor nesterov_(at::Tensor& m, const at::Tensor& grad, double factor, double mu);
at::Tensor gram(const at::Tensor& x);
at::Tensor inverse_of_positive(const at::Tensor& a);

}  // namespace aten_ops
}  // namespace thinpipe
