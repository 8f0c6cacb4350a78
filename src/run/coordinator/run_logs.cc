#include "run/coordinator/run_logs.h"

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
  const auto rows = TRY(store.commits(from));
  const auto evaluations = TRY(store.evaluations());
  std::map<int64_t, double> losses;
  std::optional<PersistEvaluation> last;
  for (const auto& row : evaluations) {
    if (row.is_final)
      last = row;
    else
      losses[row.step] = row.loss;
  }
  Lines lines;
  for (const auto& row : rows) {
    const int64_t committed = row.step + 1;
    auto text = row.metrics;
    if (evaluates_after(train_, committed)) {
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
  const auto lines = TRY(lines_from(store, 0));
  auto metrics = TRY(LineLog::rewrite(folder_ / "metrics.jsonl", joined(lines.metrics)));
  auto timing = TRY(LineLog::rewrite(folder_ / "timing.jsonl", joined(lines.timing)));
  metrics_.emplace(std::move(metrics));
  timing_.emplace(std::move(timing));
  written_ = 0;
  count(lines);
  return {};
}

Status RunLogs::catch_up(const RunStore& store) {
  const auto lines = TRY(lines_from(store, written_));
  for (const auto& line : lines.metrics) TRY(metrics_->append_text(line));
  for (const auto& line : lines.timing) TRY(timing_->append_text(line));
  count(lines);
  return {};
}

void RunLogs::count(const Lines& lines) {
  written_ += static_cast<int64_t>(lines.timing.size());
  final_written_ = final_written_ || lines.metrics.size() > lines.timing.size();
}

}  // namespace thinpipe
