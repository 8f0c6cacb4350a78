#include "run_summary.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "base/result.h"
#include "config/config_file.h"
#include "run_folders.h"

namespace thinpipe {
namespace fs = std::filesystem;
namespace {

// A number that is not finite is null in metrics.jsonl.
double number_in(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void read_metrics(RunSummary& run) {
  const auto text = read_file(run.folder / "metrics.jsonl");
  if (!text) return;
  std::istringstream lines(text.value());
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    for (const auto& [key, value] : json.items()) {
      if (key == "loss") run.loss = number_in(value);
      if (key == "step" && value.is_number_integer()) run.step = value.get<int64_t>();
      if (key == "validation_loss" || key == "final_validation_loss") run.validation_loss = number_in(value);
    }
  }
}

std::string time_of(const fs::path& file) {
  std::error_code code;
  const auto time = fs::last_write_time(file, code);
  if (code) return "";
  const auto since = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return fmt::format("{:%Y-%m-%d %H:%M}",
                     fmt::localtime(std::chrono::duration_cast<std::chrono::seconds>(since).count()));
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code code;
  for (auto entry = fs::recursive_directory_iterator(folder, code);
       !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    if (const auto size = entry->file_size(ignored); !ignored) bytes += size;
  }
  return bytes;
}

std::string loss_text(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "not finite"; }

nlohmann::ordered_json loss_json(const std::optional<double>& loss) {
  return loss && std::isfinite(*loss) ? nlohmann::ordered_json(*loss) : nlohmann::ordered_json();
}

}  // namespace

RunSummary summary_of(const fs::path& run) {
  RunSummary summary{.folder = run, .name = run.filename().string(), .state = state_of(run)};
  try {
    const auto config = load_config(run / "config.toml");
    summary.steps = config.train.steps;
    summary.corpus = config.data.corpus;
  } catch (const UserError& error) {
    summary.fault = error.what();
  }
  read_metrics(summary);
  summary.changed = time_of(run / "metrics.jsonl");
  if (summary.changed.empty()) summary.changed = time_of(run / "config.toml");
  summary.bytes = bytes_in(run);
  return summary;
}

std::string progress_text(const RunSummary& run) {
  if (!run.fault.empty()) return run.fault;
  auto text = fmt::format("step {}/{}", run.step, run.steps);
  if (run.loss) text += "  loss " + loss_text(*run.loss);
  if (run.validation_loss) text += "  validation " + loss_text(*run.validation_loss);
  return text;
}

nlohmann::ordered_json json_of(const RunSummary& run) {
  nlohmann::ordered_json json = {{"name", run.name},
                                 {"folder", run.folder.string()},
                                 {"state", run.state},
                                 {"step", run.step},
                                 {"steps", run.steps},
                                 {"loss", loss_json(run.loss)},
                                 {"validation_loss", loss_json(run.validation_loss)},
                                 {"corpus", run.corpus},
                                 {"changed", run.changed},
                                 {"bytes", run.bytes}};
  if (!run.fault.empty()) json["fault"] = run.fault;
  return json;
}

}  // namespace thinpipe
