#include "cluster/run_logs.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace thinpipe {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

}  // namespace

Result<RunLogs::Lines> RunLogs::lines_from(const RunStore& store, int64_t from) const {
  auto rows = store.commits(from);
  if (!rows) return rows.error();
  auto evaluations = store.evaluations();
  if (!evaluations) return evaluations.error();
  std::map<int64_t, double> losses;
  std::optional<EvaluationRow> last;
  for (const auto& row : evaluations.value()) {
    if (row.is_final)
      last = row;
    else
      losses[row.step] = row.loss;
  }
  Lines lines;
  for (const auto& row : rows.value()) {
    const int64_t committed = row.step + 1;
    auto text = row.metrics;
    if (rule_.due_after(committed)) {
      const auto loss = losses.find(committed);
      if (loss == losses.end()) return lines;
      auto json = nlohmann::ordered_json::parse(text);
      json["validation_loss"] = loss->second;
      text = json.dump();
    }
    lines.metrics.push_back(std::move(text));
    lines.timing.push_back(row.timing);
  }
  if (last && !final_written_) {
    lines.metrics.push_back(nlohmann::ordered_json{{"step", last->step}, {"final_validation_loss", last->loss}}.dump());
  }
  return lines;
}

Status RunLogs::rewrite(const RunStore& store) {
  final_written_ = false;
  auto lines = lines_from(store, 0);
  if (!lines) return lines.error();
  auto metrics = LineLog::rewrite(folder_ / "metrics.jsonl", joined(lines.value().metrics));
  if (!metrics) return metrics.error();
  auto timing = LineLog::rewrite(folder_ / "timing.jsonl", joined(lines.value().timing));
  if (!timing) return timing.error();
  metrics_.emplace(std::move(metrics.value()));
  timing_.emplace(std::move(timing.value()));
  written_ = static_cast<int64_t>(lines.value().timing.size());
  final_written_ = lines.value().metrics.size() > lines.value().timing.size();
  return {};
}

Status RunLogs::catch_up(const RunStore& store) {
  auto lines = lines_from(store, written_);
  if (!lines) return lines.error();
  for (const auto& line : lines.value().metrics) {
    if (auto status = metrics_->append_text(line); !status) return status;
  }
  for (const auto& line : lines.value().timing) {
    if (auto status = timing_->append_text(line); !status) return status;
  }
  written_ += static_cast<int64_t>(lines.value().timing.size());
  final_written_ = final_written_ || lines.value().metrics.size() > lines.value().timing.size();
  return {};
}

}  // namespace thinpipe
