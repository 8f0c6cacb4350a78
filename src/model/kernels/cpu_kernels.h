// The model's element-wise work on one CPU core, as plain loops over rows. Each function has an ATen twin in
// aten_ops.cc that computes the same in tensor algebra. cpu_kernels.cc is compiled once per instruction set, and
// cpu_kernels<T>() picks the best one for this machine.
//
// No ATen and no C++ library here: the linker might otherwise keep an inline function compiled with -march=x86-64-v3
// for the whole program.
#pragma once

#include <cstdint>

namespace thinpipe {

template <class T>
struct CpuKernels {
  // h = x * s o g with s = 1 / sqrt(mean(x^2) + eps).   x, h: (rows, d); g: (d); s: (rows)
  void (*rms_norm)(const T* x, const T* g, int64_t rows, int64_t d, T eps, T* h, T* s);
  // dx += d/dx, dg += d/dg of rms_norm.                  dh, x, dx: (rows, d); dg: (d)
  void (*rms_norm_backward)(const T* dh, const T* x, const T* s, const T* g, int64_t rows, int64_t d, T* dx, T* dg);

  // Rotates pairs (i, i + head_dim/2) of each head in place; sign -1 rotates back.
  //   qk: (rows, heads * head_dim), rows `row_stride` apart; cos, sin: (positions, head_dim/2); row r has
  //   position (first_row + r) % positions.
  void (*rope)(T* qk, int64_t row_stride, int64_t first_row, int64_t rows, int64_t positions, int64_t heads,
               int64_t head_dim, const T* cos, const T* sin, T sign);

  // y = silu(gate) * up.   gate_up: (rows, 2m) with gate first; y: (rows, m)
  void (*swiglu)(const T* gate_up, int64_t rows, int64_t m, T* y);
  void (*swiglu_backward)(const T* dy, const T* gate_up, int64_t rows, int64_t m, T* d_gate_up);

  // Causal attention of one head: output = softmax(scale * q k^T) v, where row r sees keys 0..r.
  //   q, k, v: (length, dim), rows `stride` apart; output: rows `output_stride` apart; lse: (length)
  //   scratch: attention_scratch(length, dim) numbers
  void (*attention)(const T* q, const T* k, const T* v, int64_t stride, int64_t length, int64_t dim, T scale,
                    T* scratch, T* output, int64_t output_stride, T* lse);
  // dq becomes the gradient of q; those of k and v are added to dk and dv.   dq, dk, dv: rows `stride` apart
  void (*attention_backward)(const T* q, const T* k, const T* v, int64_t stride, int64_t length, int64_t dim, T scale,
                             T* scratch, const T* output, const T* d_output, int64_t output_stride, const T* lse, T* dq,
                             T* dk, T* dv);

  // The two directions of the anchor table (METHOD 1b), over the distinct tokens [0, unique) of a microbatch. order
  // lists the rows token by token; those of token t are order[offsets[t] .. offsets[t+1]).
  //   y_r = a_r * y_r + b_r * table[t]              y: (rows, n), holding c M on entry; table: (unique, n)
  void (*table_read)(T* y, const T* a, const T* b, const T* table, const int64_t* order, const int64_t* offsets,
                     int64_t unique, int64_t n);
  //   dots_r += <dy_r, table[t]>, d_table[t] = sum over its rows of b_r * dy_r
  void (*table_read_backward)(const T* dy, const T* b, const T* table, const int64_t* order, const int64_t* offsets,
                              int64_t unique, int64_t n, T* dots, T* d_table);
  // Backward of diag(g) W from X = dL/d(diag(g) W): dw += diag(g) X, dg += rowsum(X o W).   w, x, dw: (rows, n)
  void (*gain_product_backward)(const T* x, const T* w, const T* g, int64_t rows, int64_t n, T* dw, T* dg);

  // Returns the sum of -log softmax(logits)[target]; with `gradient`, logits become scale * (softmax - one_hot).
  //   logits: (rows, V); targets: (rows), each in [0, V)
  double (*cross_entropy)(T* logits, const int64_t* targets, int64_t rows, int64_t vocab, bool gradient, T scale);

  double (*squared_sum)(const T* x, int64_t count);
  // m = mu m + (1 - mu) factor g, direction = mu m + (1 - mu) factor g.
  void (*nesterov)(T* m, const T* g, int64_t count, T factor, T mu, T* direction);
};

// Numbers that the attention kernels need besides their input and output.
inline constexpr int64_t kAttentionTile = 96;  // query rows, and keys, at once
constexpr int64_t attention_scratch(int64_t length, int64_t dim) {
  const int64_t wide = dim + 16;  // 16: panels are filled up to their width
  return 3 * (length + 16) * wide + kAttentionTile * (2 * (kAttentionTile + 16) + 3 * wide + 2);
}

template <class T>
const CpuKernels<T>& cpu_kernels();
template <>
const CpuKernels<float>& cpu_kernels<float>();
template <>
const CpuKernels<double>& cpu_kernels<double>();

}  // namespace thinpipe
