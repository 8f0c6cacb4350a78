#include "pipeline/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "optim/learning_rate.h"
#include "optim/optimizer.h"

namespace thinpipe {
namespace {

constexpr size_t kMostPasses = 1024;  // per stage and step; members may lie

nlohmann::ordered_json passes_of(const control::Ready& report) {
  auto passes = nlohmann::ordered_json::array();
  // To a tenth of a millisecond, because every such line is kept.
  const auto rounded = [](double s) { return std::round(s * 1e4) / 1e4; };
  for (const auto& pass : report.passes()) {
    if (passes.size() == kMostPasses) break;
    passes.push_back({pass.backward() ? "b" : "f", pass.microbatch(), rounded(pass.begin_s()), rounded(pass.end_s())});
  }
  return passes;
}

}  // namespace

int64_t tokens_per_step(const TrainConfig& train) { return train.microbatches * train.microbatch * train.seq_len; }

bool evaluates_after(const TrainConfig& train, int64_t committed) {
  return train.eval_every > 0 && committed > 0 && committed < train.steps && committed % train.eval_every == 0;
}

Result<CommitRow> decide(int64_t tokens, double clip, std::span<const control::Ready> reports) {
  CommitRow row{.step = reports.front().step(), .epoch = reports.front().epoch()};
  for (const auto& report : reports) {
    row.loss += report.loss_sum();
    row.squared_norm += report.squared_norm();
    if (report.basis_hash() != reports.front().basis_hash()) return Error{"the stages disagree on the next basis"};
  }
  row.loss /= static_cast<double>(tokens);
  row.apply = std::isfinite(row.squared_norm) && std::isfinite(row.loss);
  row.grad_factor = row.apply ? clip_factor(row.squared_norm, clip) : 0.0;
  if (!row.apply) {
    row.why = fmt::format("skipped: the {} is not finite", std::isfinite(row.loss) ? "gradients' norm" : "loss");
  } else if (row.grad_factor == 1.0) {
    row.why = "applied without clipping";
  } else {
    row.why = fmt::format("applied with gradients scaled by {:.3g}: their norm is {:.3g}, optim.clip = {}",
                          row.grad_factor, std::sqrt(row.squared_norm), clip);
  }
  return row;
}

control::Commit commit_message(const CommitRow& row) {
  control::Commit commit;
  commit.set_epoch(row.epoch);
  commit.set_revision(row.revision);
  commit.set_step(row.step);
  commit.set_apply(row.apply);
  commit.set_grad_factor(row.grad_factor);
  commit.set_basis_version(row.basis_version);
  return commit;
}

uint64_t bytes_of(std::span<const control::Ready> reports) {
  uint64_t total = 0;
  for (const auto& report : reports) total += report.forward_bytes() + report.backward_bytes();
  return total;
}

nlohmann::ordered_json metrics_line(const RunConfig& config, const CommitRow& row,
                                    std::span<const control::Ready> reports) {
  nlohmann::ordered_json line = {
      {"step", row.step + 1},
      {"loss", row.loss},
      {"grad_norm", std::sqrt(row.squared_norm)},
      {"lr", config.optim.lr * learning_rate_factor(config.optim, row.step, config.train.steps)},
      {"tokens", (row.step + 1) * tokens_per_step(config.train)}};
  if (!row.apply) line["skipped"] = true;
  if (reports.size() > 1) {
    auto cuts = nlohmann::ordered_json::array();
    for (size_t cut = 0; cut + 1 < reports.size(); ++cut) {
      cuts.push_back({{"forward", reports[cut].forward_bytes()}, {"backward", reports[cut + 1].backward_bytes()}});
    }
    line["bytes"] = std::move(cuts);
  }
  if (reports.back().has_basis()) {
    const auto& basis = reports.back().basis();
    line["basis"] = {{"version", basis.version()},
                     {"angles_rad", std::vector<double>(basis.angles_rad().begin(), basis.angles_rad().end())},
                     {"energy_inside", basis.energy_inside()},
                     {"gram_eigenvalues", {basis.smallest_gram(), basis.largest_gram()}}};
  }
  // Known one step after the change of basis, with the stages' next reports.
  double dropped = 0;
  for (const auto& report : reports) dropped = std::max(dropped, report.dropped_share());
  if (dropped > 0) line["dropped_share"] = dropped;
  return line;
}

nlohmann::ordered_json timing_line(int64_t step, double elapsed_s, std::span<const control::Ready> reports) {
  nlohmann::ordered_json line = {{"step", step + 1}, {"seconds", elapsed_s}};
  auto stages = nlohmann::ordered_json::array();
  for (const auto& report : reports) {
    nlohmann::ordered_json stage = {{"total_s", report.total_s()},
                                    {"forward_s", report.forward_s()},
                                    {"backward_s", report.backward_s()},
                                    {"update_s", report.update_s()},
                                    {"wait_s", report.wait_s()}};
    if (report.passes_size() > 0) stage["passes"] = passes_of(report);
    stages.push_back(std::move(stage));
  }
  line["stages"] = std::move(stages);
  return line;
}

}  // namespace thinpipe
