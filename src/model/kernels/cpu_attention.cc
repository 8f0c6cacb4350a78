// Causal attention on a CPU, per sequence and key/value head. Query rows are handled in blocks whose scores stay in
// cache, BLAS multiplies strided views of qkv, and the backward pass recomputes the probabilities from the saved
// log-sum-exp. Needs two (kQueryBlock x T) buffers per thread besides inputs and outputs.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/result.h"
#include "model/kernels/cpu_kernels.h"
#include "model/kernels/ops.h"

namespace thinpipe::ops {
namespace {

constexpr int64_t kQueryBlock = 128;

template <class T>
struct Matrix {
  T* data;
  int64_t stride;  // between rows
};

// c = op(a) op(b) + beta c with c: (m, n) and inner size k.
void multiply(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, Matrix<const float> a,
              Matrix<const float> b, float beta, Matrix<float> c) {
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0f, a.data, static_cast<int>(a.stride),
              b.data, static_cast<int>(b.stride), beta, c.data, static_cast<int>(c.stride));
}
void multiply(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, Matrix<const double> a,
              Matrix<const double> b, double beta, Matrix<double> c) {
  cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0, a.data, static_cast<int>(a.stride),
              b.data, static_cast<int>(b.stride), beta, c.data, static_cast<int>(c.stride));
}

// Where the heads of one sequence are in qkv (or its gradient), in the output, and in the scratch memory.
template <class T>
struct Head {
  T *q, *k, *v;
};

template <class T>
Head<T> head_of(T* qkv, const AttentionShape& shape, int64_t sequence, int64_t head) {
  T* row = qkv + sequence * shape.length * shape.qkv_width();
  const int64_t kv_head = head * shape.kv_heads / shape.heads;
  return {row + head * shape.head_dim, row + shape.query_width() + kv_head * shape.head_dim,
          row + shape.query_width() + shape.kv_width() + kv_head * shape.head_dim};
}

template <class T>
void forward_head(Head<const T> in, const AttentionShape& shape, T* scratch, T* output, T* lse) {
  const int64_t stride = shape.qkv_width();
  const T scale = T(1) / std::sqrt(static_cast<T>(shape.head_dim));
  for (int64_t first = 0; first < shape.length; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, shape.length - first), keys = first + rows;
    multiply(false, true, rows, keys, shape.head_dim, {in.q + first * stride, stride}, {in.k, stride}, T(0),
             {scratch, keys});
    cpu_kernels<T>().causal_softmax(scratch, rows, first, scale, lse + first);
    multiply(false, false, rows, shape.head_dim, keys, {scratch, keys}, {in.v, stride}, T(0),
             {output + first * shape.query_width(), shape.query_width()});
  }
}

template <class T>
void backward_head(Head<const T> in, const T* output, const T* d_output, const T* lse, const AttentionShape& shape,
                   T* scratch, Head<T> grad) {
  const int64_t stride = shape.qkv_width(), width = shape.query_width(), dim = shape.head_dim;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  T *p = scratch, *dp = scratch + kQueryBlock * shape.length;
  T delta[kQueryBlock];
  for (int64_t first = 0; first < shape.length; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, shape.length - first), keys = first + rows;
    const Matrix<const T> q{in.q + first * stride, stride}, d_out{d_output + first * width, width};
    for (int64_t row = 0; row < rows; ++row) {
      const T *a = output + (first + row) * width, *b = d_out.data + row * width;
      delta[row] = 0;
      for (int64_t i = 0; i < dim; ++i) delta[row] += a[i] * b[i];
    }
    multiply(false, true, rows, keys, dim, q, {in.k, stride}, T(0), {p, keys});
    cpu_kernels<T>().causal_softmax_again(p, rows, first, scale, lse + first);
    multiply(true, false, keys, dim, rows, {p, keys}, d_out, T(1), {grad.v, stride});
    multiply(false, true, rows, keys, dim, d_out, {in.v, stride}, T(0), {dp, keys});
    cpu_kernels<T>().softmax_backward(p, dp, rows, keys, scale, delta);
    multiply(false, false, rows, dim, keys, {dp, keys}, {in.k, stride}, T(0), {grad.q + first * stride, stride});
    multiply(true, false, keys, dim, rows, {dp, keys}, q, T(1), {grad.k, stride});
  }
}

// Calls body(sequence, head) for all; heads that share a key/value head stay on one thread, in order.
template <class Body>
void for_each_head(const AttentionShape& shape, const Body& body) {
  const int64_t group = shape.heads / shape.kv_heads;
  // Heads per task: with short sequences a thread is not worth it.
  constexpr int64_t kMultiplicationsPerTask = 1 << 18;
  const int64_t each = group * shape.length * shape.length * shape.head_dim;
  const int64_t grain = std::max<int64_t>(1, kMultiplicationsPerTask / std::max<int64_t>(1, each));
  at::parallel_for(0, shape.sequences * shape.kv_heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      for (int64_t member = 0; member < group; ++member) {
        body(task / shape.kv_heads, task % shape.kv_heads * group + member);
      }
    }
  });
}

}  // namespace

Attended attention(const at::Tensor& qkv, const AttentionShape& shape) {
  if (!fused(qkv)) return aten_ops::attention(qkv, shape);
  TP_CHECK(qkv.is_contiguous() && qkv.size(0) == shape.sequences * shape.length && qkv.size(1) == shape.qkv_width(),
           "attention: qkv is not (B*T, q+k+v)");
  Attended result{at::empty({qkv.size(0), shape.query_width()}, qkv.options()),
                  at::empty({shape.sequences, shape.heads, shape.length}, qkv.options())};
  const auto scratch = at::empty({at::get_num_threads(), kQueryBlock * shape.length}, qkv.options());
  AT_DISPATCH_FLOATING_TYPES(qkv.scalar_type(), "attention", [&] {
    const auto* in = qkv.data_ptr<scalar_t>();
    auto *out = result.output.data_ptr<scalar_t>(), *lse = result.lse.data_ptr<scalar_t>(),
         *buffer = scratch.data_ptr<scalar_t>();
    for_each_head(shape, [&](int64_t sequence, int64_t head) {
      forward_head<scalar_t>(head_of(in, shape, sequence, head), shape,
                             buffer + at::get_thread_num() * kQueryBlock * shape.length,
                             out + sequence * shape.length * shape.query_width() + head * shape.head_dim,
                             lse + (sequence * shape.heads + head) * shape.length);
    });
  });
  return result;
}

at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape) {
  if (!fused(qkv)) return aten_ops::attention_backward(d_output, qkv, forward, shape);
  TP_CHECK(d_output.is_contiguous() && qkv.is_contiguous(), "attention_backward needs contiguous tensors");
  auto d_qkv = at::zeros_like(qkv);
  const auto scratch = at::empty({at::get_num_threads(), 2 * kQueryBlock * shape.length}, qkv.options());
  AT_DISPATCH_FLOATING_TYPES(qkv.scalar_type(), "attention_backward", [&] {
    const auto *in = qkv.data_ptr<scalar_t>(), *d_out = d_output.data_ptr<scalar_t>(),
               *out = forward.output.data_ptr<scalar_t>(), *lse = forward.lse.data_ptr<scalar_t>();
    auto *grad = d_qkv.data_ptr<scalar_t>(), *buffer = scratch.data_ptr<scalar_t>();
    for_each_head(shape, [&](int64_t sequence, int64_t head) {
      const int64_t offset = sequence * shape.length * shape.query_width() + head * shape.head_dim;
      backward_head<scalar_t>(head_of(in, shape, sequence, head), out + offset, d_out + offset,
                              lse + (sequence * shape.heads + head) * shape.length, shape,
                              buffer + int64_t{2} * at::get_thread_num() * kQueryBlock * shape.length,
                              head_of(grad, shape, sequence, head));
    });
  });
  return d_qkv;
}

}  // namespace thinpipe::ops
