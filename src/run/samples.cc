#include "run/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "base/line.h"

namespace thinpipe {

std::vector<Sample> read_samples(const std::filesystem::path& run_folder) {
  std::vector<Sample> samples;
  const auto text = read_file(run_folder / "samples.jsonl");
  if (!text) return samples;
  std::istringstream lines(text.value());
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (!json.contains("text") || !json["text"].is_string()) continue;
    samples.push_back({json["step"].get<int64_t>(), one_line(json["text"].get<std::string>())});
  }
  return samples;
}

Status add_sample(const std::filesystem::path& run_folder, const Sample& sample) {
  auto samples = read_samples(run_folder);
  std::erase_if(samples, [&](const Sample& one) { return one.step >= sample.step; });
  samples.push_back({sample.step, one_line(sample.text)});
  std::string lines;
  for (size_t i = samples.size() - std::min(samples.size(), kMostSamples); i < samples.size(); ++i) {
    const nlohmann::ordered_json json = {{"step", samples[i].step}, {"text", samples[i].text}};
    lines += json.dump() + "\n";
  }
  return write_file_atomically(run_folder / "samples.jsonl", lines);
}

std::string sample_text(const Sample& sample) {
  return fmt::format("sample after step {}: {}", sample.step, sample.text);
}

}  // namespace thinpipe
