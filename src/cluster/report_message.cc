#include "cluster/report_message.h"

namespace thinpipe {

control::Ready to_message(const StageReport& report) {
  control::Ready ready;
  ready.set_loss_sum(report.loss_sum);
  ready.set_squared_norm(report.squared_norm);
  ready.set_nonfinite_from_previous(report.nonfinite_from_previous);
  ready.set_nonfinite_from_next(report.nonfinite_from_next);
  ready.set_forward_bytes(report.forward_bytes);
  ready.set_backward_bytes(report.backward_bytes);
  ready.set_basis_hash(report.basis_hash);
  ready.set_dropped_share(report.dropped_share);
  ready.set_forward_s(report.forward_s);
  ready.set_backward_s(report.backward_s);
  ready.set_wait_s(report.wait_s);
  ready.set_update_s(report.update_s);
  ready.set_total_s(report.total_s);
  if (report.basis) {
    auto& basis = *ready.mutable_basis();
    basis.set_version(report.basis->version);
    for (const double angle : report.basis->angles_rad) basis.add_angles_rad(angle);
    basis.set_energy_inside(report.basis->energy_inside);
    basis.set_smallest_gram(report.basis->smallest_gram);
    basis.set_largest_gram(report.basis->largest_gram);
  }
  return ready;
}

StageReport from_message(const control::Ready& ready) {
  StageReport report;
  report.loss_sum = ready.loss_sum();
  report.squared_norm = ready.squared_norm();
  report.nonfinite_from_previous = ready.nonfinite_from_previous();
  report.nonfinite_from_next = ready.nonfinite_from_next();
  report.forward_bytes = ready.forward_bytes();
  report.backward_bytes = ready.backward_bytes();
  report.basis_hash = ready.basis_hash();
  report.dropped_share = ready.dropped_share();
  report.forward_s = ready.forward_s();
  report.backward_s = ready.backward_s();
  report.wait_s = ready.wait_s();
  report.update_s = ready.update_s();
  report.total_s = ready.total_s();
  if (ready.has_basis()) {
    const auto& basis = ready.basis();
    report.basis = {basis.version(),
                    {basis.angles_rad().begin(), basis.angles_rad().end()},
                    basis.energy_inside(),
                    basis.smallest_gram(),
                    basis.largest_gram()};
  }
  return report;
}

}  // namespace thinpipe
