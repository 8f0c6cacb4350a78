#include "run_summary.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/files.h"
#include "base/line.h"
#include "base/result.h"
#include "base/say.h"
#include "base/units.h"
#include "config/config_file.h"
#include "run/guest.h"

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

// The median time of the last steps; nothing before the second one. Reads only the end of the file, which may be long.
std::optional<double> seconds_per_step(const fs::path& timing) {
  constexpr std::streamoff kEnd = 256 << 10;
  constexpr size_t kSteps = 16;
  std::ifstream file(timing, std::ios::ate | std::ios::binary);
  if (!file) return std::nullopt;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kEnd));
  std::vector<double> taken;
  std::optional<double> last;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);  // the first line may be the end of one
    if (!json.is_object() || !json.contains("seconds") || !json["seconds"].is_number()) continue;
    const auto here = json["seconds"].get<double>();
    if (last && here > *last) taken.push_back(here - *last);  // else another coordinator has started
    last = here;
  }
  if (taken.empty()) return std::nullopt;
  if (taken.size() > kSteps) taken.erase(taken.begin(), taken.end() - kSteps);
  const auto middle = taken.begin() + std::ssize(taken) / 2;
  std::nth_element(taken.begin(), middle, taken.end());
  return *middle;
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
  if (summary.state == "running" && summary.steps > summary.step) {
    if (const auto step_s = seconds_per_step(run / "timing.jsonl")) {
      summary.left_s = *step_s * static_cast<double>(summary.steps - summary.step);
    }
  }
  return summary;
}

std::string progress_text(const RunSummary& run) {
  if (!run.fault.empty()) return run.fault;
  auto text = fmt::format("step {}/{}", run.step, run.steps);
  if (run.loss) text += "  loss " + loss_text(*run.loss);
  if (run.validation_loss) text += "  validation " + loss_text(*run.validation_loss);
  if (run.left_s) text += "  ETA " + left_text(*run.left_s);
  return text;
}

std::string left_text(double left_s) {
  return format_duration(std::chrono::seconds(std::llround(std::min(left_s, 1e9))));
}

nlohmann::ordered_json json_of(const RunSummary& run) {
  nlohmann::ordered_json json = {{"name", run.name},
                                 {"folder", run.folder.string()},
                                 {"state", run.state},
                                 {"step", run.step},
                                 {"steps", run.steps},
                                 {"loss", loss_json(run.loss)},
                                 {"validation_loss", loss_json(run.validation_loss)},
                                 {"eta_s", run.left_s ? nlohmann::ordered_json(*run.left_s) : nlohmann::ordered_json()},
                                 {"corpus", run.corpus},
                                 {"changed", run.changed},
                                 {"bytes", run.bytes}};
  if (!run.fault.empty()) json["fault"] = run.fault;
  return json;
}

std::string joined_name(const JoinedFolder& run) {
  const auto id = run.folder.filename().string().substr(0, 8);
  return run.joined.name.empty() ? id : fmt::format("{} ({})", run.joined.name, id);
}

std::string joined_text(const JoinedFolder& run) {
  const auto& joined = run.joined;
  const auto line = fmt::format("{}  step {}/{}  joined as {}{}: {}, {} tokens, {} sent, {} received  {}\n",
                                joined_name(run), joined.step, joined.steps, joined.peer,
                                joined.stage < 0 ? "" : fmt::format(", stage {} of {}", joined.stage, joined.stages),
                                counted(joined.steps_here, "step"), joined.tokens_here, format_size(joined.bytes_sent),
                                format_size(joined.bytes_received), state_of(run));
  return line + limits_line(run.folder);
}

nlohmann::ordered_json json_of(const JoinedFolder& run) {
  const auto& joined = run.joined;
  return {{"name", joined.name},
          {"folder", run.folder.string()},
          {"joined", joined.run},
          {"peer", joined.peer},
          {"state", state_of(run)},
          {"stage", joined.stage},
          {"stages", joined.stages},
          {"step", joined.step},
          {"steps", joined.steps},
          {"steps_here", joined.steps_here},
          {"tokens_here", joined.tokens_here},
          {"seconds_here", joined.seconds_here},
          {"bytes_sent", joined.bytes_sent},
          {"bytes_received", joined.bytes_received},
          {"limits", limits_json(run.folder)}};
}

std::string limits_line(const std::filesystem::path& folder) {
  const auto guest = kept_guest_options(folder);
  const auto limits = guest ? describe(guest.value()) : guest.error().message;
  return limits.empty() ? "" : fmt::format("limits on this machine: {}\n", one_line(limits));
}

nlohmann::ordered_json limits_json(const std::filesystem::path& folder) {
  auto json = nlohmann::ordered_json::object();
  const auto guest = kept_guest_options(folder);
  if (!guest) return json;
  for (const auto& option : guest_options()) {
    if (const auto& value = guest.value().*option.text; !value.empty()) json[option.name] = value;
  }
  return json;
}

}  // namespace thinpipe
