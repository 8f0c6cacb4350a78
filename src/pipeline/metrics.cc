#include "pipeline/metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "optim/learning_rate.h"

namespace thinpipe {

nlohmann::ordered_json metrics_line(const RunConfig& config, const StepOutcome& outcome,
                                    const std::vector<StageReport>& stages) {
  const auto& train = config.train;
  nlohmann::ordered_json line = {
      {"step", outcome.step + 1},
      {"loss", outcome.loss},
      {"grad_norm", outcome.norm},
      {"lr", config.optim.lr * learning_rate_factor(config.optim, outcome.step, train.steps)},
      {"tokens", (outcome.step + 1) * train.microbatches * train.microbatch * train.seq_len}};
  if (!outcome.applied) line["skipped"] = true;
  if (stages.size() > 1) {
    auto cuts = nlohmann::ordered_json::array();
    for (size_t cut = 0; cut + 1 < stages.size(); ++cut) {
      cuts.push_back({{"forward", stages[cut].forward_bytes}, {"backward", stages[cut + 1].backward_bytes}});
    }
    line["bytes"] = std::move(cuts);
  }
  if (const auto& basis = stages.back().basis) {
    line["basis"] = {{"version", basis->version},
                     {"angles_rad", basis->angles_rad},
                     {"energy_inside", basis->energy_inside},
                     {"gram_eigenvalues", {basis->smallest_gram, basis->largest_gram}}};
  }
  // Known one step after the change-over, when the stages next report.
  double dropped = 0;
  for (const auto& stage : stages) dropped = std::max(dropped, stage.dropped_share);
  if (dropped > 0) line["dropped_share"] = dropped;
  return line;
}

nlohmann::ordered_json timing_line(int64_t step, double elapsed_s, const std::vector<StageReport>& stages) {
  nlohmann::ordered_json line = {{"step", step + 1}, {"seconds", elapsed_s}};
  auto parts = nlohmann::ordered_json::array();
  for (const auto& stage : stages) {
    parts.push_back({{"total_s", stage.total_s},
                     {"forward_s", stage.forward_s},
                     {"backward_s", stage.backward_s},
                     {"update_s", stage.update_s},
                     {"wait_s", stage.wait_s}});
  }
  line["stages"] = std::move(parts);
  return line;
}

}  // namespace thinpipe
