// Compiled once per instruction set; THINPIPE_KERNELS names the namespace (src/model/CMakeLists.txt).
#include "model/kernels/cpu_kernels.h"

#include <math.h>

namespace thinpipe::THINPIPE_KERNELS {
namespace {

// exp by range reduction, 2^n * exp(r) with |r| <= ln2 / 2, and a polynomial. Unlike expf, it vectorises. Within 2 ulp
// of exp on [-87, 88] (checked by a test); 0 or a huge finite number outside.
inline float exp_of(float x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float n = (x * kLog2e + kRounder) - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  union {
    int32_t bits;
    float value;
  } power{(static_cast<int32_t>(n) + 127) << 23};
  return p * power.value;
}
inline double exp_of(double x) { return exp(x); }

template <class T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + exp_of(-x));
}

template <class T>
void rms_norm(const T* x, const T* g, int64_t rows, int64_t d, T eps, T* h, T* s) {
  for (int64_t row = 0; row < rows; ++row, x += d, h += d) {
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
    const T scale = T(1) / static_cast<T>(sqrt(squares / static_cast<T>(d) + eps));
    s[row] = scale;
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) h[i] = x[i] * scale * g[i];
  }
}

template <class T>
void rms_norm_backward(const T* dh, const T* x, const T* s, const T* g, int64_t rows, int64_t d, T* dx, T* dg) {
  for (int64_t row = 0; row < rows; ++row, dh += d, x += d, dx += d) {
    const T scale = s[row];
    T dot = 0;  // <dh o g, x>
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < d; ++i) dot += dh[i] * g[i] * x[i];
    const T pull = dot * scale * scale * scale / static_cast<T>(d);
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      dx[i] += dh[i] * g[i] * scale - x[i] * pull;
      dg[i] += dh[i] * x[i] * scale;
    }
  }
}

template <class T>
void rope(T* qk, int64_t row_stride, int64_t first_row, int64_t rows, int64_t positions, int64_t heads,
          int64_t head_dim, const T* cos, const T* sin, T sign) {
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = (first_row + row) % positions;
    const T* c = cos + position * half;
    const T* s = sin + position * half;
    for (int64_t head = 0; head < heads; ++head) {
      T* low = qk + row * row_stride + head * head_dim;
      T* high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const T a = low[i];
        const T b = high[i];
        low[i] = a * c[i] - sign * b * s[i];
        high[i] = b * c[i] + sign * a * s[i];
      }
    }
  }
}

template <class T>
void swiglu(const T* gate_up, int64_t rows, int64_t m, T* y) {
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * m, y += m) {
    const T* gate = gate_up;
    const T* up = gate_up + m;
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  }
}

template <class T>
void swiglu_backward(const T* dy, const T* gate_up, int64_t rows, int64_t m, T* d_gate_up) {
  for (int64_t row = 0; row < rows; ++row, dy += m, gate_up += 2 * m, d_gate_up += 2 * m) {
    const T* gate = gate_up;
    const T* up = gate_up + m;
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) {
      const T q = sigmoid(gate[i]);
      const T silu = gate[i] * q;
      d_gate_up[i] = dy[i] * up[i] * (q + silu * (T(1) - q));
      d_gate_up[m + i] = dy[i] * silu;
    }
  }
}

template <class T>
void causal_softmax(T* scores, int64_t rows, int64_t first_row, T scale, T* lse) {
  const int64_t keys = first_row + rows;
  for (int64_t row = 0; row < rows; ++row, scores += keys) {
    const int64_t seen = first_row + row + 1;
    T top = scores[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < seen; ++i) top = scores[i] > top ? scores[i] : top;
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < seen; ++i) {
      scores[i] = exp_of((scores[i] - top) * scale);
      sum += scores[i];
    }
    const T inverse = T(1) / sum;
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) scores[i] *= inverse;
    for (int64_t i = seen; i < keys; ++i) scores[i] = 0;
    lse[row] = top * scale + static_cast<T>(log(sum));
  }
}

template <class T>
void causal_softmax_again(T* scores, int64_t rows, int64_t first_row, T scale, const T* lse) {
  const int64_t keys = first_row + rows;
  for (int64_t row = 0; row < rows; ++row, scores += keys) {
    const int64_t seen = first_row + row + 1;
    const T shift = lse[row];
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) scores[i] = exp_of(scores[i] * scale - shift);
    for (int64_t i = seen; i < keys; ++i) scores[i] = 0;
  }
}

template <class T>
void softmax_backward(const T* p, T* dp, int64_t rows, int64_t keys, T scale, const T* delta) {
  for (int64_t row = 0; row < rows; ++row, p += keys, dp += keys) {
    const T shift = delta[row];
#pragma omp simd
    for (int64_t i = 0; i < keys; ++i) dp[i] = scale * p[i] * (dp[i] - shift);
  }
}

template <class T>
void table_read(T* y, const T* a, const T* b, const T* table, const int64_t* order, const int64_t* offsets,
                int64_t unique, int64_t n) {
  for (int64_t token = 0; token < unique; ++token) {
    const T* anchor = table + token * n;
    for (int64_t at = offsets[token]; at < offsets[token + 1]; ++at) {
      const int64_t row = order[at];
      T* out = y + row * n;
      const T left = a[row];
      const T right = b[row];
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = left * out[i] + right * anchor[i];
    }
  }
}

template <class T>
void table_read_backward(const T* dy, const T* b, const T* table, const int64_t* order, const int64_t* offsets,
                         int64_t unique, int64_t n, T* dots, T* d_table) {
  for (int64_t token = 0; token < unique; ++token) {
    const T* anchor = table + token * n;
    T* sum = d_table + token * n;
    for (int64_t i = 0; i < n; ++i) sum[i] = 0;
    for (int64_t at = offsets[token]; at < offsets[token + 1]; ++at) {
      const int64_t row = order[at];
      const T* in = dy + row * n;
      const T right = b[row];
      T dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < n; ++i) {
        dot += in[i] * anchor[i];
        sum[i] += right * in[i];
      }
      dots[row] += dot;
    }
  }
}

template <class T>
void gain_product_backward(const T* x, const T* w, const T* g, int64_t rows, int64_t n, T* dw, T* dg) {
  for (int64_t row = 0; row < rows; ++row, x += n, w += n, dw += n) {
    const T gain = g[row];
    T dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; ++i) {
      dot += x[i] * w[i];
      dw[i] += gain * x[i];
    }
    dg[row] += dot;
  }
}

template <class T>
double cross_entropy(T* logits, const int64_t* targets, int64_t rows, int64_t vocab, bool gradient, T scale) {
  double total = 0;
  for (int64_t row = 0; row < rows; ++row, logits += vocab) {
    T top = logits[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < vocab; ++i) top = logits[i] > top ? logits[i] : top;
    const T wanted = logits[targets[row]];
    T sum = 0;
    if (gradient) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < vocab; ++i) {
        logits[i] = exp_of(logits[i] - top);
        sum += logits[i];
      }
      const T factor = scale / sum;
#pragma omp simd
      for (int64_t i = 0; i < vocab; ++i) logits[i] *= factor;
      logits[targets[row]] -= scale;
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < vocab; ++i) sum += exp_of(logits[i] - top);
    }
    total += log(static_cast<double>(sum)) + static_cast<double>(top) - static_cast<double>(wanted);
  }
  return total;
}

template <class T>
constexpr CpuKernels<T> kTable{rms_norm<T>,
                               rms_norm_backward<T>,
                               rope<T>,
                               swiglu<T>,
                               swiglu_backward<T>,
                               causal_softmax<T>,
                               causal_softmax_again<T>,
                               softmax_backward<T>,
                               table_read<T>,
                               table_read_backward<T>,
                               gain_product_backward<T>,
                               cross_entropy<T>};

}  // namespace

const CpuKernels<float>& float_kernels() { return kTable<float>; }
const CpuKernels<double>& double_kernels() { return kTable<double>; }

}  // namespace thinpipe::THINPIPE_KERNELS
