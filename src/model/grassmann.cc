#include "model/grassmann.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace thinpipe {

double spectral_norm(const at::Tensor& c) {
  if (!at::isfinite(c).all().item<bool>()) return NAN;  // LAPACK would throw
  return at::linalg_eigvalsh(c).max().item<double>();
}

Basis grassmann_step(const Basis& basis, const at::Tensor& c, double alpha) {
  const auto wide = c.cpu().to(at::kDouble);
  const double scale = spectral_norm(wide);
  // Without gradients, or with infinite ones, there is no direction. (A step with such gradients is not committed
  // either.)
  if (!(scale > 0) || !std::isfinite(scale)) return {basis.u, basis.version + 1};
  const auto cu = wide.mm(basis.u);                              // (d, k)
  const auto outside = cu - basis.u.mm(basis.u.t().mm(cu));      // (I - UU^T) C U
  const auto moved = basis.u + outside * (2.0 * alpha / scale);  // U - alpha R
  auto [q, r] = at::linalg_qr(moved, "reduced");
  const auto sign = r.diagonal().sign();
  // Twice: the QR of an orthonormal matrix keeps U^T U = I to the last bits over any number of updates.
  auto [q2, r2] = at::linalg_qr(q * sign, "reduced");
  return {(q2 * r2.diagonal().sign()).contiguous(), basis.version + 1};
}

at::Tensor change_of_coordinates(const Basis& before, const Basis& after) { return before.u.t().mm(after.u); }

double dropped_share(const at::Tensor& a, const at::Tensor& q) {
  const auto host = a.cpu().to(at::kDouble);
  const double whole = host.square().sum().item<double>();
  if (whole == 0) return 0;
  const double kept = host.mm(q).square().sum().item<double>();
  return std::sqrt(std::max(0.0, 1.0 - kept / whole));
}

BasisDiagnostics diagnose(const Basis& before, const Basis& after, const at::Tensor& c) {
  const auto wide = c.cpu().to(at::kDouble);
  const double total = wide.diagonal().sum().item<double>();
  const double inside = before.u.mul(wide.mm(before.u)).sum().item<double>();
  // The sines of the angles are the singular values of the part of U' outside U: accurate for small angles, unlike
  // acos.
  const auto outside = after.u - before.u.mm(change_of_coordinates(before, after));
  std::vector<double> angles;
  for (const auto& sine : at::linalg_svdvals(outside).unbind())
    angles.push_back(std::asin(std::min(1.0, sine.item<double>())));
  const auto gram = at::linalg_eigvalsh(after.u.t().mm(after.u));
  return {after.version, std::move(angles), total > 0 ? inside / total : 1.0, gram.min().item<double>(),
          gram.max().item<double>()};
}

}  // namespace thinpipe
