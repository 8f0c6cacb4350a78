// Causal attention on a CPU: divides sequences and key/value heads over the threads. The kernels work on one head; the
// backward pass computes the probabilities again from the saved log-sum-exp.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/result.h"
#include "model/kernels/cpu_kernels.h"
#include "model/kernels/ops.h"

namespace thinpipe::ops {
namespace {

// Where a head of one sequence is in qkv, or in its gradient.
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
T scale_of(const AttentionShape& shape) {
  return T(1) / std::sqrt(static_cast<T>(shape.head_dim));
}

at::Tensor scratch_of(const AttentionShape& shape, const at::Tensor& qkv) {
  return at::empty({at::get_num_threads(), attention_scratch(shape.length, shape.head_dim)}, qkv.options());
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
  const auto scratch = scratch_of(shape, qkv);
  AT_DISPATCH_FLOATING_TYPES(qkv.scalar_type(), "attention", [&] {
    const auto* in = qkv.data_ptr<scalar_t>();
    auto *out = result.output.data_ptr<scalar_t>(), *lse = result.lse.data_ptr<scalar_t>(),
         *buffer = scratch.data_ptr<scalar_t>();
    for_each_head(shape, [&](int64_t sequence, int64_t head) {
      const auto [q, k, v] = head_of(in, shape, sequence, head);
      cpu_kernels<scalar_t>().attention(q, k, v, shape.qkv_width(), shape.length, shape.head_dim,
                                        scale_of<scalar_t>(shape), buffer + at::get_thread_num() * scratch.size(1),
                                        out + sequence * shape.length * shape.query_width() + head * shape.head_dim,
                                        shape.query_width(), lse + (sequence * shape.heads + head) * shape.length);
    });
  });
  return result;
}

at::Tensor attention_backward(const at::Tensor& d_output, const at::Tensor& qkv, const Attended& forward,
                              const AttentionShape& shape) {
  if (!fused(qkv)) return aten_ops::attention_backward(d_output, qkv, forward, shape);
  TP_CHECK(d_output.is_contiguous() && qkv.is_contiguous(), "attention_backward needs contiguous tensors");
  auto d_qkv = at::zeros_like(qkv);
  const auto scratch = scratch_of(shape, qkv);
  AT_DISPATCH_FLOATING_TYPES(qkv.scalar_type(), "attention_backward", [&] {
    const auto *in = qkv.data_ptr<scalar_t>(), *d_out = d_output.data_ptr<scalar_t>(),
               *out = forward.output.data_ptr<scalar_t>(), *lse = forward.lse.data_ptr<scalar_t>();
    auto *grad = d_qkv.data_ptr<scalar_t>(), *buffer = scratch.data_ptr<scalar_t>();
    for_each_head(shape, [&](int64_t sequence, int64_t head) {
      const int64_t offset = sequence * shape.length * shape.query_width() + head * shape.head_dim;
      const auto [q, k, v] = head_of(in, shape, sequence, head);
      const auto [dq, dk, dv] = head_of(grad, shape, sequence, head);
      cpu_kernels<scalar_t>().attention_backward(
          q, k, v, shape.qkv_width(), shape.length, shape.head_dim, scale_of<scalar_t>(shape),
          buffer + at::get_thread_num() * scratch.size(1), out + offset, d_out + offset, shape.query_width(),
          lse + (sequence * shape.heads + head) * shape.length, dq, dk, dv);
    });
  });
  return d_qkv;
}

}  // namespace thinpipe::ops
