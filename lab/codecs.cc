// lab codecs: the ways to shrink what crosses a cut, in one table: bytes, loss after the same steps, and the time of
// these steps over a slow link.
#include <limits>

#include "base/units.h"
#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "lab/step_time.h"

namespace thinpipe {
namespace {

struct CodecRow {
  const char* name;
  std::vector<std::string> settings;
};

std::vector<CodecRow> codec_rows() {
  const std::string dense = "model.mode=dense", feedback = "boundary.error_feedback=true";
  const auto lossy = [&](const char* kind, const char* pack) {
    return std::vector<std::string>{dense, fmt::format("boundary.kind={}", kind), fmt::format("boundary.pack={}", pack),
                                    "boundary.keep=8"};
  };
  const auto with_feedback = [&](std::vector<std::string> settings) {
    settings.push_back(feedback);
    return settings;
  };
  return {{"dense, fp32", {dense, "boundary.pack=fp32"}},
          {"dense, bf16", {dense, "boundary.pack=bf16"}},
          {"dense, int8", {dense, "boundary.pack=int8"}},
          {"dense, int8 + ef", {dense, "boundary.pack=int8", feedback}},
          {"dense, int4", {dense, "boundary.pack=int4"}},
          {"dense, int4 + ef", {dense, "boundary.pack=int4", feedback}},
          {"dense, int2", {dense, "boundary.pack=int2"}},
          {"dense, int2 + ef", {dense, "boundary.pack=int2", feedback}},
          {"topk 8, bf16", lossy("topk", "bf16")},
          {"topk 8, bf16 + ef", with_feedback(lossy("topk", "bf16"))},
          {"lowrank 8, int8", lossy("lowrank", "int8")},
          {"lowrank 8, int8 + ef", with_feedback(lossy("lowrank", "int8"))},
          {"subspace 8, int8", {"subspace.rank=8", "boundary.pack=int8"}},
          {"subspace 16, int4", {"subspace.rank=16", "boundary.pack=int4"}}};
}

RunConfig codec_config(const CodecRow& row, bool quick) {
  std::vector<std::string> settings{fmt::format("model.d={}", quick ? 64 : 128),
                                    fmt::format("model.blocks={}", quick ? 4 : 8),
                                    "model.heads=4",
                                    "pipeline.stages=4",
                                    "data.vocab=2048",
                                    "train.seq_len=128",
                                    "train.microbatch=2",
                                    "train.microbatches=4",
                                    "train.eval_sequences=64",
                                    fmt::format("train.steps={}", quick ? 2 : 200),
                                    fmt::format("train.eval_every={}", quick ? 2 : 20)};
  settings.insert(settings.end(), row.settings.begin(), row.settings.end());
  return parse_config("", "the experiment", settings);
}

}  // namespace

void lab_codecs(const ExperimentOptions& options) {
  constexpr double kRate = 10e6, kDelay_s = 0.025;
  const auto rows = codec_rows();
  Experiment experiment("codecs", "Which way to shrink the messages between stages costs least in loss and time?",
                        options, static_cast<int64_t>(2 * rows.size()));
  const auto corpus = prepare_corpus(codec_config(rows[0], options.quick).data, data_dir());
  const auto model = codec_config(rows[0], options.quick).model;
  fmt::print("d = {}, {} blocks in 4 stages; step time: a core per stage, links of {} and {:.0f} ms\n", model.d,
             model.blocks, format_rate(static_cast<uint64_t>(kRate)), 1000 * kDelay_s);
  fmt::print("{:<22} {:>12} {:>8} {:>8} {:>12}\n", "", "bytes/token", "vs fp32", "loss", "seconds/step");
  Plot plot{"validation loss against time", "seconds over 10 Mbit/s and 25 ms", "nats per token", {}, true};
  std::string best_name, best_dense_name;
  double dense_loss = 0, best_loss = std::numeric_limits<double>::infinity(), best_dense = best_loss;
  for (const auto& row : rows) {
    const auto config = codec_config(row, options.quick);
    const auto curve = experiment.train(row.name, config, corpus);
    const auto timed =
        experiment.part(std::string(row.name) + ", time", "time\n" + to_toml(config) + corpus.id,
                        [&]() -> nlohmann::ordered_json { return StepTime(config, corpus).over(kRate, kDelay_s); });
    const double step_s = timed.get<double>();
    const double compression = 8.0 * static_cast<double>(config.model.d) / curve.bytes_per_token;
    fmt::print("{:<22} {:>12.1f} {:>7.1f}x {:>8.4f} {:>12.3f}\n", row.name, curve.bytes_per_token, compression,
               curve.final_loss(), step_s);
    experiment.result()["rows"].push_back({{"name", row.name},
                                           {"bytes_per_token", curve.bytes_per_token},
                                           {"compression_vs_fp32", compression},
                                           {"loss", curve.final_loss()},
                                           {"step_s", step_s}});
    Series series{row.name, {}};
    for (const auto& [step, loss] : curve.points()) series.points.emplace_back(step * step_s, loss);
    plot.series.push_back(std::move(series));
    if (row.settings.front() != "model.mode=dense") {
      if (curve.final_loss() < best_loss) best_loss = curve.final_loss(), best_name = row.name;
    } else if (dense_loss == 0) {
      dense_loss = curve.final_loss();
    } else if (compression >= 16 && curve.final_loss() < best_dense) {
      best_dense = curve.final_loss(), best_dense_name = row.name;
    }
  }
  experiment.finish(
      fmt::format(
          "Dense without loss on the wire ends at {:.4f}. At 16 times fewer bytes than fp32 or better, the best "
          "lossy codec ({}) ends at {:.4f} and the subspace ({}) at {:.4f}.",
          dense_loss, best_dense_name, best_dense, best_name, best_loss),
      {plot});
}

}  // namespace thinpipe
