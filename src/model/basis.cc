#include "model/basis.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "model/fill.h"

namespace thinpipe {
namespace {

using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void normalise(Column& column) {
  const double scale = 1.0 / std::sqrt(dot(column, column));
  for (double& value : column) value *= scale;
}

}  // namespace

Basis make_basis(uint64_t seed, int64_t d, int64_t k) {
  TP_CHECK(0 < k && k <= d, "a basis of {} columns in {} dimensions", k, d);
  std::vector<Column> columns(static_cast<size_t>(k), Column(static_cast<size_t>(d)));
  const CounterRng rng(seed, "basis");
  for (size_t j = 0; j < columns.size(); ++j) {
    rng.fill_unit_variance(j * static_cast<uint64_t>(d), columns[j]);
    normalise(columns[j]);
    // The second sweep removes the rounding errors of the first: orthogonal to working precision.
    for (int sweep = 0; sweep < 2; ++sweep) {
      for (size_t i = 0; i < j; ++i) {
        const double along = dot(columns[i], columns[j]);
        for (size_t row = 0; row < columns[j].size(); ++row) columns[j][row] -= along * columns[i][row];
      }
      normalise(columns[j]);
    }
  }
  std::vector<double> flat;
  for (const auto& column : columns) flat.insert(flat.end(), column.begin(), column.end());
  return {doubles_tensor(flat).view({k, d}).t().contiguous(), 0};
}

std::string basis_hash(const Basis& basis) {
  Sha256 hash;
  hash.update(std::string_view(reinterpret_cast<const char*>(&basis.version), sizeof(basis.version)));
  hash.update(tensor_bytes_of(basis.u.cpu().contiguous()));
  return hash.hex();
}

}  // namespace thinpipe
