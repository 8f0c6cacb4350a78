// The operations of ops.h on a CPU: they check their input, split the rows over threads and call the fused kernels. For
// tensors that the kernels cannot take, they call the ATen twin. Attention is in cpu_attention.cc.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <cblas.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/result.h"
#include "model/kernels/cpu_kernels.h"
#include "model/kernels/ops.h"

// LAPACK, in libopenblas, which has no header for it.
extern "C" {
void spotrf_(const char* half, const int* n, float* a, const int* stride, int* info);
void dpotrf_(const char* half, const int* n, double* a, const int* stride, int* info);
void slauum_(const char* half, const int* n, float* a, const int* stride, int* info);
void dlauum_(const char* half, const int* n, double* a, const int* stride, int* info);
}

namespace thinpipe::ops {
namespace {

// A column counts in LAPACK as a row does here, so its lower half is the upper one here.
void factorise(int m, float* a, int* info) { spotrf_("L", &m, a, &m, info); }
void factorise(int m, double* a, int* info) { dpotrf_("L", &m, a, &m, info); }
void square_triangle(int m, float* a, int* info) { slauum_("L", &m, a, &m, info); }
void square_triangle(int m, double* a, int* info) { dlauum_("L", &m, a, &m, info); }

// b (rows, columns) becomes factor * triangle b, or b triangle on the right side.
void multiply_triangle(CBLAS_SIDE side, int rows, int columns, float factor, const float* triangle, float* b,
                       int stride) {
  cblas_strmm(CblasRowMajor, side, CblasUpper, CblasNoTrans, CblasNonUnit, rows, columns, factor, triangle, stride, b,
              stride);
}
void multiply_triangle(CBLAS_SIDE side, int rows, int columns, double factor, const double* triangle, double* b,
                       int stride) {
  cblas_dtrmm(CblasRowMajor, side, CblasUpper, CblasNoTrans, CblasNonUnit, rows, columns, factor, triangle, stride, b,
              stride);
}

// The upper half of c = a a^T.   a: (m, n), or (n, m) for CblasTrans, rows `stride` apart; c: (m, m)
void multiply_by_itself(CBLAS_TRANSPOSE transpose, int m, int n, const float* a, int stride, float* c) {
  cblas_ssyrk(CblasRowMajor, CblasUpper, transpose, m, n, 1, a, stride, 0, c, m);
}
void multiply_by_itself(CBLAS_TRANSPOSE transpose, int m, int n, const double* a, int stride, double* c) {
  cblas_dsyrk(CblasRowMajor, CblasUpper, transpose, m, n, 1, a, stride, 0, c, m);
}

// The inverse of an upper triangle in place; what is below is not touched. OpenBLAS's trtri would take up to five times
// as long.   a: (m, m), rows `stride` apart
template <class T>
void invert_triangle(int m, T* a, int stride) {
  constexpr int kSmall = 16;
  if (m > kSmall) {  // [A B; 0 C] becomes [A' -A' B C'; 0 C']
    const int half = (m / 2 + 7) / 8 * 8;
    T *b = a + half, *c = b + static_cast<int64_t>(half) * stride;
    invert_triangle(half, a, stride);
    invert_triangle(m - half, c, stride);
    multiply_triangle(CblasLeft, half, m - half, T(-1), a, b, stride);
    multiply_triangle(CblasRight, half, m - half, T(1), c, b, stride);
    return;
  }
  for (int i = m; i-- > 0;) {  // the rows below are inverted
    T* row = a + static_cast<int64_t>(i) * stride;
    T sum[kSmall] = {};
    for (int k = i + 1; k < m; ++k) {
      const T* below = a + static_cast<int64_t>(k) * stride;
      for (int j = k; j < m; ++j) sum[j] += row[k] * below[j];
    }
    row[i] = T(1) / row[i];
    for (int j = i + 1; j < m; ++j) row[j] = -row[i] * sum[j];
  }
}

// Half of the inverse of a positive definite matrix, in place; false if it is not one. With a = R^T R it is R' R'^T.
template <class T>
bool invert_upper(int m, T* a) {
  int info = 0;
  factorise(m, a, &info);
  if (info != 0) return false;
  invert_triangle(m, a, m);
  square_triangle(m, a, &info);
  return info == 0;
}

// Rows per task, each with this many numbers: enough work to pay for a thread, few enough to balance the load.
int64_t rows_per_task(int64_t numbers) {
  constexpr int64_t kNumbersPerTask = 1 << 15;
  return std::max<int64_t>(1, kNumbersPerTask / std::max<int64_t>(1, numbers));
}

// Square by square, so that the reads down a column stay in the cache.
template <class T>
void copy_upper_to_lower(T* c, int64_t m) {
  constexpr int64_t kSquare = 32;
  for (int64_t top = 0; top < m; top += kSquare) {
    for (int64_t left = 0; left <= top; left += kSquare) {
      for (int64_t i = top; i < std::min(top + kSquare, m); ++i) {
        for (int64_t j = left; j < std::min(left + kSquare, i); ++j) c[i * m + j] = c[j * m + i];
      }
    }
  }
}

}  // namespace

bool fused(const at::Tensor& tensor) {
  return tensor.is_cpu() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

Normed rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps) {
  if (!fused(x)) return aten_ops::rms_norm(x, gain, eps);
  TP_CHECK(x.is_contiguous() && gain.is_contiguous(), "rms_norm needs contiguous tensors");
  const int64_t rows = x.size(0), d = x.size(1);
  Normed result{at::empty_like(x), at::empty({rows}, x.options())};
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm", [&] {
    const auto *in = x.data_ptr<scalar_t>(), *g = gain.data_ptr<scalar_t>();
    auto *h = result.h.data_ptr<scalar_t>(), *s = result.s.data_ptr<scalar_t>();
    at::parallel_for(0, rows, rows_per_task(d), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().rms_norm(in + begin * d, g, end - begin, d, static_cast<scalar_t>(eps), h + begin * d,
                                       s + begin);
    });
  });
  return result;
}

void rms_norm_backward(const at::Tensor& dh, const at::Tensor& x, const at::Tensor& s, const at::Tensor& gain,
                       at::Tensor& dx, at::Tensor& d_gain) {
  if (!fused(x)) return aten_ops::rms_norm_backward(dh, x, s, gain, dx, d_gain);
  TP_CHECK(dh.is_contiguous() && x.is_contiguous() && dx.is_contiguous(), "rms_norm_backward needs contiguous tensors");
  const int64_t rows = x.size(0), d = x.size(1);
  // One partial sum per thread, added in thread order: the bits depend only on the number of threads.
  const auto partial = at::zeros({at::get_num_threads(), d}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rms_norm_backward", [&] {
    const auto *dh_data = dh.data_ptr<scalar_t>(), *x_data = x.data_ptr<scalar_t>(), *s_data = s.data_ptr<scalar_t>(),
               *g = gain.data_ptr<scalar_t>();
    auto *dx_data = dx.data_ptr<scalar_t>(), *partial_data = partial.data_ptr<scalar_t>();
    at::parallel_for(0, rows, rows_per_task(d), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().rms_norm_backward(dh_data + begin * d, x_data + begin * d, s_data + begin, g, end - begin,
                                                d, dx_data + begin * d, partial_data + at::get_thread_num() * d);
    });
  });
  d_gain.add_(partial.sum(0));
}

void rope_(const at::Tensor& qk, const RopeTable& table, int64_t heads, int64_t head_dim, bool inverse) {
  if (!fused(qk)) return aten_ops::rope_(qk, table, heads, head_dim, inverse);
  TP_CHECK(qk.stride(1) == 1 && qk.size(1) >= heads * head_dim, "rope needs rows of whole heads");
  const int64_t rows = qk.size(0), stride = qk.stride(0), positions = table.cos.size(0);
  AT_DISPATCH_FLOATING_TYPES(qk.scalar_type(), "rope", [&] {
    auto* data = qk.data_ptr<scalar_t>();
    const auto *cos = table.cos.data_ptr<scalar_t>(), *sin = table.sin.data_ptr<scalar_t>();
    at::parallel_for(0, rows, rows_per_task(heads * head_dim), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().rope(data + begin * stride, stride, begin, end - begin, positions, heads, head_dim, cos,
                                   sin, inverse ? scalar_t(-1) : scalar_t(1));
    });
  });
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  if (!fused(gate_up)) return aten_ops::swiglu(gate_up);
  TP_CHECK(gate_up.is_contiguous(), "swiglu needs a contiguous tensor");
  const int64_t rows = gate_up.size(0), m = gate_up.size(1) / 2;
  auto y = at::empty({rows, m}, gate_up.options());
  AT_DISPATCH_FLOATING_TYPES(gate_up.scalar_type(), "swiglu", [&] {
    const auto* in = gate_up.data_ptr<scalar_t>();
    auto* out = y.data_ptr<scalar_t>();
    at::parallel_for(0, rows, rows_per_task(2 * m), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().swiglu(in + begin * 2 * m, end - begin, m, out + begin * m);
    });
  });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  if (!fused(gate_up)) return aten_ops::swiglu_backward(dy, gate_up);
  TP_CHECK(dy.is_contiguous() && gate_up.is_contiguous(), "swiglu_backward needs contiguous tensors");
  const int64_t rows = gate_up.size(0), m = gate_up.size(1) / 2;
  auto d_gate_up = at::empty_like(gate_up);
  AT_DISPATCH_FLOATING_TYPES(gate_up.scalar_type(), "swiglu_backward", [&] {
    const auto *dy_data = dy.data_ptr<scalar_t>(), *in = gate_up.data_ptr<scalar_t>();
    auto* out = d_gate_up.data_ptr<scalar_t>();
    at::parallel_for(0, rows, rows_per_task(2 * m), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().swiglu_backward(dy_data + begin * m, in + begin * 2 * m, end - begin, m,
                                              out + begin * 2 * m);
    });
  });
  return d_gate_up;
}

double cross_entropy_(at::Tensor& logits, const at::Tensor& targets, bool gradient, double scale) {
  if (!fused(logits)) return aten_ops::cross_entropy_(logits, targets, gradient, scale);
  TP_CHECK(logits.is_contiguous() && targets.is_contiguous(), "cross_entropy needs contiguous tensors");
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  // Sums per thread would depend on how rows are assigned to threads; sums per block of fixed size do not.
  constexpr int64_t kBlockRows = 32;
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  std::vector<double> sums(static_cast<size_t>(blocks));
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "cross_entropy", [&] {
    auto* data = logits.data_ptr<scalar_t>();
    const auto* wanted = targets.data_ptr<int64_t>();
    at::parallel_for(0, blocks, rows_per_task(kBlockRows * vocab), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlockRows, count = std::min(kBlockRows, rows - first);
        sums[static_cast<size_t>(block)] = cpu_kernels<scalar_t>().cross_entropy(
            data + first * vocab, wanted + first, count, vocab, gradient, static_cast<scalar_t>(scale));
      }
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void table_read_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& table,
                 const TokenIndex& tokens) {
  if (!fused(y)) return aten_ops::table_read_(y, a, b, table, tokens);
  TP_CHECK(y.is_contiguous() && table.is_contiguous() && a.is_contiguous() && b.is_contiguous(),
           "table_read needs contiguous tensors");
  const int64_t unique = table.size(0), n = table.size(1);
  const auto *order = tokens.order.data_ptr<int64_t>(), *offsets = tokens.offsets.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "table_read", [&] {
    auto* out = y.data_ptr<scalar_t>();
    const auto *left = a.data_ptr<scalar_t>(), *right = b.data_ptr<scalar_t>(), *rows = table.data_ptr<scalar_t>();
    at::parallel_for(0, unique, rows_per_task(n), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().table_read(out, left, right, rows + begin * n, order, offsets + begin, end - begin, n);
    });
  });
}

TableGradient table_read_backward(const at::Tensor& dy, const at::Tensor& b, const at::Tensor& table,
                                  const TokenIndex& tokens) {
  if (!fused(dy)) return aten_ops::table_read_backward(dy, b, table, tokens);
  TP_CHECK(dy.is_contiguous() && table.is_contiguous() && b.is_contiguous(),
           "table_read_backward needs contiguous tensors");
  const int64_t unique = table.size(0), n = table.size(1);
  TableGradient gradient{at::zeros({dy.size(0)}, dy.options()), at::empty_like(table)};
  const auto *order = tokens.order.data_ptr<int64_t>(), *offsets = tokens.offsets.data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(dy.scalar_type(), "table_read_backward", [&] {
    const auto *in = dy.data_ptr<scalar_t>(), *right = b.data_ptr<scalar_t>(), *rows = table.data_ptr<scalar_t>();
    auto *dots = gradient.dots.data_ptr<scalar_t>(), *d_table = gradient.d_table.data_ptr<scalar_t>();
    at::parallel_for(0, unique, rows_per_task(n), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().table_read_backward(in, right, rows + begin * n, order, offsets + begin, end - begin, n,
                                                  dots, d_table + begin * n);
    });
  });
  return gradient;
}

void gain_product_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gain, at::Tensor& d_weight,
                           at::Tensor& d_gain) {
  if (!fused(x)) return aten_ops::gain_product_backward(x, weight, gain, d_weight, d_gain);
  TP_CHECK(x.is_contiguous() && weight.is_contiguous() && d_weight.is_contiguous(),
           "gain_product_backward needs contiguous tensors");
  const int64_t rows = x.size(0), n = x.size(1);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "gain_product_backward", [&] {
    const auto *x_data = x.data_ptr<scalar_t>(), *w = weight.data_ptr<scalar_t>(), *g = gain.data_ptr<scalar_t>();
    auto *dw = d_weight.data_ptr<scalar_t>(), *dg = d_gain.data_ptr<scalar_t>();
    at::parallel_for(0, rows, rows_per_task(n), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().gain_product_backward(x_data + begin * n, w + begin * n, g + begin, end - begin, n,
                                                    dw + begin * n, dg + begin);
    });
  });
}

double squared_sum(const at::Tensor& x) {
  if (!fused(x)) return aten_ops::squared_sum(x);
  TP_CHECK(x.is_contiguous(), "squared_sum needs a contiguous tensor");
  constexpr int64_t kPiece = 1 << 15;  // its sum does not depend on the threads
  const int64_t pieces = (x.numel() + kPiece - 1) / kPiece;
  std::vector<double> sums(static_cast<size_t>(pieces));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "squared_sum", [&] {
    const auto* data = x.data_ptr<scalar_t>();
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t first = piece * kPiece;
        sums[static_cast<size_t>(piece)] =
            cpu_kernels<scalar_t>().squared_sum(data + first, std::min(kPiece, x.numel() - first));
      }
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

at::Tensor nesterov_(at::Tensor& m, const at::Tensor& grad, double factor, double mu) {
  if (!fused(m)) return aten_ops::nesterov_(m, grad, factor, mu);
  TP_CHECK(m.is_contiguous() && grad.is_contiguous() && m.numel() == grad.numel(), "nesterov needs contiguous tensors");
  auto direction = at::empty_like(m);
  AT_DISPATCH_FLOATING_TYPES(m.scalar_type(), "nesterov", [&] {
    auto *kept = m.data_ptr<scalar_t>(), *out = direction.data_ptr<scalar_t>();
    const auto* g = grad.data_ptr<scalar_t>();
    at::parallel_for(0, m.numel(), rows_per_task(1), [&](int64_t begin, int64_t end) {
      cpu_kernels<scalar_t>().nesterov(kept + begin, g + begin, end - begin, static_cast<scalar_t>(factor),
                                       static_cast<scalar_t>(mu), out + begin);
    });
  });
  return direction;
}

at::Tensor gram(const at::Tensor& x) {
  if (!fused(x)) return aten_ops::gram(x);
  const int64_t m = x.size(0), n = x.size(1);
  auto c = at::empty({m, m}, x.options());
  // Rows or columns must be whole.
  const auto a = (x.stride(1) == 1 && x.stride(0) >= n) || (x.stride(0) == 1 && x.stride(1) >= m) ? x : x.contiguous();
  const bool by_rows = a.stride(1) == 1 && a.stride(0) >= n;
  AT_DISPATCH_FLOATING_TYPES(c.scalar_type(), "gram", [&] {
    multiply_by_itself(by_rows ? CblasNoTrans : CblasTrans, static_cast<int>(m), static_cast<int>(n),
                       a.data_ptr<scalar_t>(), static_cast<int>(a.stride(by_rows ? 0 : 1)), c.data_ptr<scalar_t>());
    copy_upper_to_lower(c.data_ptr<scalar_t>(), m);
  });
  return c;
}

at::Tensor inverse_of_positive(const at::Tensor& a) {
  if (!fused(a)) return aten_ops::inverse_of_positive(a);
  auto inverse = a.clone(at::MemoryFormat::Contiguous);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "inverse_of_positive", [&] {
    auto* data = inverse.data_ptr<scalar_t>();
    if (invert_upper(static_cast<int>(a.size(0)), data)) {
      copy_upper_to_lower(data, a.size(0));
    } else {
      inverse.fill_(std::numeric_limits<double>::quiet_NaN());
    }
  });
  return inverse;
}

}  // namespace thinpipe::ops
