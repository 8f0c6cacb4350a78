#include "lab/training.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/files.h"
#include "base/result.h"
#include "base/sha256.h"
#include "config/config_file.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"

namespace thinpipe {

using Json = nlohmann::ordered_json;

std::optional<int64_t> Curve::steps_to(double target) const {
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] <= target) return static_cast<int64_t>(i + 1) * every;
  }
  return std::nullopt;
}

std::vector<std::pair<double, double>> Curve::points(size_t first) const {
  std::vector<std::pair<double, double>> points;
  for (size_t i = first; i < losses.size(); ++i) {
    points.emplace_back(static_cast<double>((static_cast<int64_t>(i) + 1) * every), losses[i]);
  }
  return points;
}

Json to_json(const Curve& curve) {
  return {{"parameters", curve.parameters},
          {"bytes_per_token", curve.bytes_per_token},
          {"every", curve.every},
          {"losses", curve.losses}};
}

Curve curve_from(const Json& json) {
  return {json.at("parameters"), json.at("bytes_per_token"), json.at("every"), json.at("losses")};
}

Curve train_curve(const RunConfig& config, const PreparedCorpus& corpus,
                  const std::function<void(int64_t step, double loss)>& progress) {
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, corpus_table(config, corpus).take());
  const int64_t windows = std::min(config.train.eval_sequences, batches.validation_windows());
  Curve curve;
  curve.parameters = pipeline.parameter_count();
  curve.every = config.train.eval_every;
  double bytes = 0;
  for (int64_t step = 0; step < config.train.steps; ++step) {
    bytes += static_cast<double>(bytes_of(pipeline.step(step).stages));
    if ((step + 1) % curve.every != 0) continue;
    curve.losses.push_back(pipeline.validate(windows));
    if (progress) progress(step + 1, curve.losses.back());
  }
  const auto tokens = static_cast<double>(config.train.steps * tokens_per_step(config.train));
  curve.bytes_per_token = bytes / tokens / static_cast<double>(std::max<int64_t>(1, config.pipeline.stages - 1));
  return curve;
}

Json kept_or_made(const std::string& group, const std::string& key, const std::function<Json()>& make) {
  const auto folder = data_dir() / "lab" / group;
  const auto path = folder / (sha256_hex(key).substr(0, 24) + ".json");
  // A file that somebody has changed is made again.
  if (const auto text = read_file(path)) {
    const auto kept = Json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
    if (kept.is_object() && kept.contains("value") && kept.contains("sha256") &&
        kept["sha256"] == sha256_hex(kept["value"].dump())) {
      return kept["value"];
    }
  }
  auto made = make();
  make_directories(folder).take();
  write_file_atomically(path, Json{{"sha256", sha256_hex(made.dump())}, {"value", made}}.dump() + "\n").take();
  return made;
}

Curve kept_curve(const std::string& group, const RunConfig& config, const PreparedCorpus& corpus,
                 const std::function<void(int64_t step, double loss)>& progress) {
  return curve_from(
      kept_or_made(group, to_toml(config) + corpus.id, [&] { return to_json(train_curve(config, corpus, progress)); }));
}

}  // namespace thinpipe
