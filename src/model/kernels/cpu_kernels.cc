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

// ---- attention ----
// Works on tiles of kAttentionTile query rows and as many keys, whose scores stay in the cache, and multiplies by small
// products of its own: those of BLAS would pack the operands again for every tile.

// A panel is 64 bytes wide. Twelve vectors of sums are enough to keep two units busy that take four cycles each.
#ifdef __AVX512F__
#define THINPIPE_VECTOR_BYTES 64
#else
#define THINPIPE_VECTOR_BYTES 32
#endif
constexpr int64_t kVectorBytes = THINPIPE_VECTOR_BYTES;
constexpr int kVectors = 64 / kVectorBytes;  // per row of a panel
constexpr int kMostRows = 12 / kVectors;     // at once
template <class T>
struct Panel;
template <>
struct Panel<float> {
  typedef float Vector __attribute__((vector_size(THINPIPE_VECTOR_BYTES), aligned(4)));
};
template <>
struct Panel<double> {
  typedef double Vector __attribute__((vector_size(THINPIPE_VECTOR_BYTES), aligned(8)));
};
template <class T>
constexpr int64_t kWidth = 64 / sizeof(T);  // of a panel

constexpr int64_t kTile = kAttentionTile;
constexpr int64_t kScoreRow = kTile + 16;  // not a power of 2, so that a column does not fall on few lines of the cache
// A tile on the diagonal is handled in strips of so many rows, each without the part that it does not see.
constexpr int64_t kStrip = 24;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
int64_t panels(int64_t columns) {
  return (columns + kWidth<T> - 1) / kWidth<T>;
}

// The matrix in panels of kWidth columns, each row by row; the last is filled up with zeros.   x: (rows, columns)
template <class T>
void pack(const T* x, int64_t stride, int64_t rows, int64_t columns, T* packed) {
  for (int64_t first = 0; first < columns; first += kWidth<T>) {
    const int64_t width = least(kWidth<T>, columns - first);
    for (int64_t row = 0; row < rows; ++row, packed += kWidth<T>) {
      for (int64_t i = 0; i < width; ++i) packed[i] = x[row * stride + first + i];
      for (int64_t i = width; i < kWidth<T>; ++i) packed[i] = 0;
    }
  }
}

// The same of the transposed matrix, read along its rows.   x: (columns, rows)
template <class T>
void pack_transposed(const T* x, int64_t stride, int64_t rows, int64_t columns, T* packed) {
  for (int64_t first = 0; first < columns; first += kWidth<T>, packed += rows * kWidth<T>) {
    for (int64_t i = 0; i < kWidth<T>; ++i) {
      const T* from = first + i < columns ? x + (first + i) * stride : nullptr;
      for (int64_t row = 0; row < rows; ++row) packed[row * kWidth<T> + i] = from != nullptr ? from[row] : T(0);
    }
  }
}

// Element (i, k) of the left operand is at data[i * row + k * step].
template <class T>
struct Left {
  const T* data;
  int64_t row, step;
};
// The packed right operand; its panels are `panel` numbers apart.
template <class T>
struct Right {
  const T* data;
  int64_t panel;
};

// c (kRows, kWidth) = a b, or += if add.
template <int kRows, class T>
inline void multiply_tile(Left<T> a, const T* b, int64_t depth, bool add, T* c, int64_t stride) {
  using Vector = typename Panel<T>::Vector;
  Vector sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    Vector* row = reinterpret_cast<Vector*>(c + i * stride);
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sum[i][j] = add ? row[j] : Vector{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const Vector* right = reinterpret_cast<const Vector*>(b + k * kWidth<T>);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const T x = a.data[i * a.row + k * a.step];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) sum[i][j] += x * right[j];
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    Vector* row = reinterpret_cast<Vector*>(c + i * stride);
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) row[j] = sum[i][j];
  }
}

// `rows` is from 1 to kRows.
template <int kRows, class T>
void multiply_rows(int64_t rows, Left<T> a, const T* b, int64_t depth, bool add, T* c, int64_t stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_rows<kRows - 1>(rows, a, b, depth, add, c, stride);
  }
  multiply_tile<kRows>(a, b, depth, add, c, stride);
}

// c (m, n) = a b, or += if add.
template <class T>
void multiply(int64_t m, int64_t n, int64_t depth, Left<T> a, Right<T> b, bool add, T* c, int64_t stride) {
  for (int64_t left = 0; left < n; left += kWidth<T>, b.data += b.panel) {
    const int64_t width = least(kWidth<T>, n - left);
    for (int64_t top = 0; top < m; top += kMostRows) {
      const int64_t rows = least(kMostRows, m - top);
      const Left<T> part{a.data + top * a.row, a.row, a.step};
      T* out = c + top * stride + left;
      if (width == kWidth<T>) {
        multiply_rows<kMostRows>(rows, part, b.data, depth, add, out, stride);
        continue;
      }
      T edge[kMostRows * kWidth<T>];  // c has no room for a whole panel
      multiply_rows<kMostRows>(rows, part, b.data, depth, false, edge, kWidth<T>);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j)
          out[i * stride + j] = edge[i * kWidth<T> + j] + (add ? out[i * stride + j] : 0);
      }
    }
  }
}

// Calls body(first row, rows, keys that these rows see): once for a tile below the diagonal, else strip by strip.
template <class Body>
void for_each_strip(int64_t rows, int64_t keys, bool diagonal, const Body& body) {
  if (!diagonal) return body(0, rows, keys);
  for (int64_t first = 0; first < rows; first += kStrip) {
    const int64_t count = least(kStrip, rows - first);
    body(first, count, first + count);
  }
}

// The softmax goes on over the next keys: `top` and `sum` of each row, and the rows of `mixed`, are brought up to date,
// and scores become exp(scale * (score - top)); 0 for keys that a row does not see.
// Not inlined: inside a larger function g++ 12 does not vectorise the exponentials.
template <class T>
[[gnu::noinline]] void softmax_on(T* scores, int64_t rows, int64_t keys, bool diagonal, bool is_first, T scale, T* top,
                                  T* sum, T* mixed, int64_t dim) {
  for (int64_t row = 0; row < rows; ++row, scores += kScoreRow, mixed += dim) {
    const int64_t seen = diagonal ? row + 1 : keys;
    T most = is_first ? scores[0] : top[row];
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < seen; ++i) most = scores[i] > most ? scores[i] : most;
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < seen; ++i) {
      scores[i] = exp_of((scores[i] - most) * scale);
      total += scores[i];
    }
    for (int64_t i = seen; i < keys; ++i) scores[i] = 0;
    if (!is_first && most > top[row]) {
      const T shrink = exp_of((top[row] - most) * scale);
      sum[row] *= shrink;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) mixed[i] *= shrink;
    }
    top[row] = most;
    sum[row] = is_first ? total : sum[row] + total;
  }
}

template <class T>
void attention(const T* q, const T* k, const T* v, int64_t stride, int64_t length, int64_t dim, T scale, T* scratch,
               T* output, int64_t output_stride, T* lse) {
  T* keys = scratch;                                         // k^T, packed
  T* values = keys + panels<T>(length) * kWidth<T> * dim;    // v, packed
  T* scores = values + panels<T>(dim) * kWidth<T> * length;  // (kTile, kScoreRow)
  T* mixed = scores + kTile * kScoreRow;                     // (kTile, dim)
  T *top = mixed + kTile * dim, *sum = top + kTile;          // (kTile) each
  pack_transposed(k, stride, dim, length, keys);
  pack(v, stride, length, dim, values);
  for (int64_t first = 0; first < length; first += kTile) {
    const int64_t rows = least(kTile, length - first);
    for (int64_t from = 0; from <= first; from += kTile) {
      const int64_t count = least(kTile, length - from);
      const bool diagonal = from == first;
      for_each_strip(rows, count, diagonal, [&](int64_t strip, int64_t height, int64_t seen) {
        multiply<T>(height, seen, dim, {q + (first + strip) * stride, stride, 1}, {keys + from * dim, kWidth<T> * dim},
                    false, scores + strip * kScoreRow, kScoreRow);
      });
      softmax_on(scores, rows, count, diagonal, from == 0, scale, top, sum, mixed, dim);
      for_each_strip(rows, count, diagonal, [&](int64_t strip, int64_t height, int64_t seen) {
        multiply<T>(height, dim, seen, {scores + strip * kScoreRow, kScoreRow, 1},
                    {values + from * kWidth<T>, kWidth<T> * length}, from > 0, mixed + strip * dim, dim);
      });
    }
    for (int64_t row = 0; row < rows; ++row) {
      const T inverse = T(1) / sum[row];
      T* out = output + (first + row) * output_stride;
      for (int64_t i = 0; i < dim; ++i) out[i] = mixed[row * dim + i] * inverse;
      lse[first + row] = top[row] * scale + static_cast<T>(log(sum[row]));
    }
  }
}

// Scores become the probabilities p, and dp becomes scale * p o (dp - delta), the gradient of the scores.
template <class T>
[[gnu::noinline]] void softmax_backward(T* scores, T* dp, int64_t rows, int64_t keys, bool diagonal, T scale,
                                        const T* lse, const T* delta) {
  for (int64_t row = 0; row < rows; ++row, scores += kScoreRow, dp += kScoreRow) {
    const int64_t seen = diagonal ? row + 1 : keys;
    const T shift = lse[row], pull = delta[row];
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) {
      scores[i] = exp_of(scores[i] * scale - shift);
      dp[i] = scale * scores[i] * (dp[i] - pull);
    }
    for (int64_t i = seen; i < keys; ++i) scores[i] = dp[i] = 0;
  }
}

template <class T>
void attention_backward(const T* q, const T* k, const T* v, int64_t stride, int64_t length, int64_t dim, T scale,
                        T* scratch, const T* output, const T* d_output, int64_t output_stride, const T* lse, T* dq,
                        T* dk, T* dv) {
  const int64_t by_key = panels<T>(length) * kWidth<T> * dim, by_dim = panels<T>(dim) * kWidth<T>;
  T *keys_t = scratch, *values_t = keys_t + by_key, *keys = values_t + by_key;  // k^T, v^T and k, packed
  T *p = keys + by_dim * length, *dp = p + kTile * kScoreRow;                   // (kTile, kScoreRow) each
  T *q_packed = dp + kTile * kScoreRow, *d_out = q_packed + kTile * by_dim;     // of the tile's rows, packed
  T* delta = d_out + kTile * by_dim;                                            // (kTile)
  pack_transposed(k, stride, dim, length, keys_t);
  pack_transposed(v, stride, dim, length, values_t);
  pack(k, stride, length, dim, keys);
  for (int64_t first = 0; first < length; first += kTile) {
    const int64_t rows = least(kTile, length - first);
    const Left<T> queries{q + first * stride, stride, 1}, gradient{d_output + first * output_stride, output_stride, 1};
    pack(queries.data, stride, rows, dim, q_packed);
    pack(gradient.data, output_stride, rows, dim, d_out);
    for (int64_t row = 0; row < rows; ++row) {
      const T *a = output + (first + row) * output_stride, *b = gradient.data + row * output_stride;
      T dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < dim; ++i) dot += a[i] * b[i];
      delta[row] = dot;
    }
    for (int64_t from = 0; from <= first; from += kTile) {
      const int64_t count = least(kTile, length - from);
      const bool diagonal = from == first;
      for_each_strip(rows, count, diagonal, [&](int64_t strip, int64_t height, int64_t seen) {
        const int64_t at = strip * kScoreRow;
        multiply<T>(height, seen, dim, {queries.data + strip * stride, stride, 1},
                    {keys_t + from * dim, kWidth<T> * dim}, false, p + at, kScoreRow);
        multiply<T>(height, seen, dim, {gradient.data + strip * output_stride, output_stride, 1},
                    {values_t + from * dim, kWidth<T> * dim}, false, dp + at, kScoreRow);
      });
      softmax_backward(p, dp, rows, count, diagonal, scale, lse + first, delta);
      for_each_strip(rows, count, diagonal, [&](int64_t strip, int64_t height, int64_t seen) {
        multiply<T>(height, dim, seen, {dp + strip * kScoreRow, kScoreRow, 1},
                    {keys + from * kWidth<T>, kWidth<T> * length}, from > 0, dq + (first + strip) * stride, stride);
      });
      // Here a strip is of keys, which the rows from its first one on see.
      for_each_strip(count, rows, diagonal, [&](int64_t strip, int64_t height, int64_t) {
        const int64_t unseen = diagonal ? strip : 0, at = unseen * kScoreRow + strip;
        const Right<T> in_q{q_packed + unseen * kWidth<T>, kWidth<T> * rows},
            in_out{d_out + unseen * kWidth<T>, kWidth<T> * rows};
        multiply<T>(height, dim, rows - unseen, {p + at, 1, kScoreRow}, in_out, true, dv + (from + strip) * stride,
                    stride);
        multiply<T>(height, dim, rows - unseen, {dp + at, 1, kScoreRow}, in_q, true, dk + (from + strip) * stride,
                    stride);
      });
    }
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
double squared_sum(const T* x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

template <class T>
void nesterov(T* m, const T* g, int64_t count, T factor, T mu, T* direction) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T own = (T(1) - mu) * factor * g[i];
    m[i] = mu * m[i] + own;
    direction[i] = mu * m[i] + own;
  }
}

template <class T>
constexpr CpuKernels<T> kTable{rms_norm<T>,
                               rms_norm_backward<T>,
                               rope<T>,
                               swiglu<T>,
                               swiglu_backward<T>,
                               attention<T>,
                               attention_backward<T>,
                               table_read<T>,
                               table_read_backward<T>,
                               gain_product_backward<T>,
                               cross_entropy<T>,
                               squared_sum<T>,
                               nesterov<T>};

}  // namespace

const CpuKernels<float>& float_kernels() { return kTable<float>; }
const CpuKernels<double>& double_kernels() { return kTable<double>; }

}  // namespace thinpipe::THINPIPE_KERNELS
