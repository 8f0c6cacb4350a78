#include "model/products.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/kernels/ops.h"
#include "model/threads.h"

namespace thinpipe {
namespace {

// The number of multiplications that is worth a thread.
constexpr int64_t kWorthAThread = int64_t{1} << 19;

// c = beta c + a b, (m, n), split along its longer side into one part per thread. OpenBLAS's own threads serve one
// caller at a time and let the others spin, but every stage of a process is a caller; so it gets one thread here.
void multiply_into(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double beta) {
  if (!ops::fused(c)) {  // a GPU has its own threads
    c.addmm_(a, b, beta);
    return;
  }
  const int64_t rows = a.size(0), columns = b.size(1), longer = std::max(rows, columns);
  const int threads = at::get_num_threads();
  const int64_t parts = std::clamp<int64_t>(rows * a.size(1) * columns / kWorthAThread, 1, threads);
  const auto part = [&](int64_t begin, int64_t end) {
    if (rows == longer) {
      c.narrow(0, begin, end - begin).addmm_(a.narrow(0, begin, end - begin), b, beta);
    } else {
      c.narrow(1, begin, end - begin).addmm_(a, b.narrow(1, begin, end - begin), beta);
    }
  };
  if (parts > 1) return at::parallel_for(0, longer, (longer + parts - 1) / parts, part);
  const OneThread alone;
  part(0, longer);
}

}  // namespace

at::ScalarType storage_type(Precision precision) { return precision == Precision::kFloat64 ? at::kDouble : at::kFloat; }

at::Tensor Products::operand(const at::Tensor& a) const { return round_ ? a.to(at::kBFloat16).to(a.scalar_type()) : a; }

at::Tensor Products::multiply(const at::Tensor& a, const at::Tensor& b) const {
  const auto c = at::empty({a.size(0), b.size(1)}, a.options());
  multiply_into(c, operand(a), operand(b), 0);
  return c;
}

at::Tensor Products::multiply_add(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) const {
  const auto sum = c.clone(at::MemoryFormat::Contiguous);
  multiply_into(sum, operand(a), operand(b), 1);
  return sum;
}

void Products::accumulate(at::Tensor& c, const at::Tensor& a, const at::Tensor& b) const {
  multiply_into(c, operand(a), operand(b), 1);
}

}  // namespace thinpipe
