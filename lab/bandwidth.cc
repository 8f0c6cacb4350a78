// lab bandwidth: tokens per second against the rate and delay of the links, dense and subspace. Short steps are
// measured: two stages on threads of this process, connected by links that are slowed down. Longer ones are computed
// from measured compute times and packet sizes (StepTime); the table marks what was measured.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/units.h"
#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "lab/step_time.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

struct BandwidthRow {
  const char* name;
  std::vector<std::string> settings;
};

const std::vector<BandwidthRow>& bandwidth_rows() {
  static const std::vector<BandwidthRow> rows{
      {"dense, fp32", {"model.mode=dense", "boundary.pack=fp32"}},
      {"dense, bf16", {"model.mode=dense", "boundary.pack=bf16"}},
      {"subspace, bf16", {"boundary.pack=bf16"}},
      {"subspace, int8", {"boundary.pack=int8"}},
      {"subspace, int4", {"boundary.pack=int4"}},
  };
  return rows;
}

RunConfig bandwidth_config(const BandwidthRow& row, bool quick, const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{fmt::format("model.d={}", quick ? 64 : 256),
                                    fmt::format("model.heads={}", quick ? 2 : 4),
                                    "model.blocks=4",
                                    "pipeline.stages=2",
                                    "data.vocab=2048",
                                    "train.threads=1",
                                    "train.seq_len=128",
                                    "train.microbatch=2",
                                    "train.microbatches=8",
                                    "train.eval_sequences=64",
                                    fmt::format("train.steps={}", quick ? 4 : 200),
                                    fmt::format("train.eval_every={}", quick ? 4 : 10)};
  settings.insert(settings.end(), row.settings.begin(), row.settings.end());
  settings.insert(settings.end(), more.begin(), more.end());
  return parse_config("", "the experiment", settings);
}

// Seconds of one step over such links, after one that warms up.
double measured_step_s(const BandwidthRow& row, bool quick, double rate, double delay_s, const StepTime& step,
                       const PreparedCorpus& corpus) {
  const auto config = bandwidth_config(
      row, quick,
      {fmt::format("link.rate={:.0f}kbit", rate / 1000), fmt::format("link.delay={:.0f}ms", 1000 * delay_s)});
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, corpus_table(config, corpus).take(), /*shaped=*/true);
  for (size_t i = 0; i < 2; ++i) pipeline.worker(i).set_warmup(step.warmup(rate, delay_s));
  pipeline.step(0);
  const SystemClock clock;
  const auto start = clock.now();
  pipeline.step(1);
  return seconds(clock.now() - start);
}

}  // namespace

void lab_bandwidth(const ExperimentOptions& options) {
  constexpr double kLongestMeasured_s = 4;
  const std::vector<double> rates =
      options.quick ? std::vector<double>{1, 10} : std::vector<double>{5, 10, 50, 80, 200, 1000};
  const std::vector<double> delays = options.quick ? std::vector<double>{0} : std::vector<double>{0, 10, 50, 100};
  const auto& rows = bandwidth_rows();
  Experiment experiment("bandwidth", "From which bandwidth on do the links between stages stop mattering?", options,
                        static_cast<int64_t>(rows.size() * (1 + rates.size() * delays.size()) + 2));
  const auto corpus = prepare_corpus(bandwidth_config(rows[0], options.quick).data, data_dir());
  const auto tokens = static_cast<double>(tokens_per_step(bandwidth_config(rows[0], options.quick).train));
  fmt::print(
      "4 blocks in 2 stages with a core each, {:.0f} tokens a step; tokens per second; * measured, else computed\n",
      tokens);
  const double shown_delay_ms = options.quick ? 0 : 50;
  Plot plot{fmt::format("tokens per second with {:g} ms of delay", shown_delay_ms),
            "Mbit/s",
            "tokens per second",
            {},
            true,
            true};
  std::map<std::string, std::map<double, double>> step_s_at;  // by row and rate, at that delay
  double worst_ratio = 1;
  std::string answer;
  for (const auto& row : rows) {
    const auto config = bandwidth_config(row, options.quick);
    const StepTime step(config, corpus);
    const auto key = to_toml(config) + corpus.id;
    const auto unlimited = experiment.part(fmt::format("{}, unlimited", row.name), "unlimited\n" + key,
                                           [&]() -> Json { return step.over(0, 0); });
    const double free_s = unlimited.get<double>();
    fmt::print("{:<16} unlimited {:>8.0f}\n", row.name, tokens / free_s);
    Series series{row.name, {}};
    double stops_mattering = INFINITY;
    for (const double delay_ms : delays) {
      fmt::print("{:>10.0f} ms:", delay_ms);
      for (const double rate : rates) {
        const auto point = experiment.part(
            fmt::format("{}, {:g} Mbit/s, {:g} ms", row.name, rate, delay_ms),
            fmt::format("{} {}\n{}", rate, delay_ms, key), [&]() -> Json {
              const double computed_s = step.over(rate * 1e6, delay_ms / 1000);
              if (computed_s > kLongestMeasured_s) return {{"computed_s", computed_s}};
              return {{"computed_s", computed_s},
                      {"measured_s", measured_step_s(row, options.quick, rate * 1e6, delay_ms / 1000, step, corpus)}};
            });
        const double computed_s = point.at("computed_s");
        const bool measured = point.contains("measured_s");
        const double step_s = measured ? point.at("measured_s").get<double>() : computed_s;
        if (measured) worst_ratio = std::max(worst_ratio, step_s / computed_s);
        fmt::print(" {:>5g} Mbit/s {:>6.0f}{}", rate, tokens / step_s, measured ? "*" : " ");
        experiment.result()["points"].push_back({{"row", row.name},
                                                 {"rate_mbit", rate},
                                                 {"delay_ms", delay_ms},
                                                 {"tokens_per_s", tokens / step_s},
                                                 {"measured", measured},
                                                 {"computed_s", computed_s}});
        if (delay_ms != shown_delay_ms) continue;
        step_s_at[row.name][rate] = step_s;
        series.points.emplace_back(rate, tokens / step_s);
        if (computed_s <= free_s / 0.95) stops_mattering = std::min(stops_mattering, rate);
      }
      fmt::print("\n");
    }
    plot.series.push_back(std::move(series));
    answer +=
        fmt::format("{}{} {}", answer.empty() ? "" : ", ", row.name,
                    std::isinf(stops_mattering) ? "at none of these" : fmt::format("{:g} Mbit/s", stops_mattering));
    experiment.result()["rows"].push_back(
        {{"name", row.name},
         {"unlimited_tokens_per_s", tokens / free_s},
         {"stops_mattering_mbit", std::isinf(stops_mattering) ? Json() : Json(stops_mattering)}});
  }
  std::vector<Plot> plots{plot};
  const std::vector<size_t> shown{1, 4};  // dense in bf16, subspace in int4
  std::vector<Curve> curves;
  for (const size_t i : shown) {
    curves.push_back(
        experiment.train(fmt::format("{}, training", rows[i].name), bandwidth_config(rows[i], options.quick), corpus));
  }
  for (const double rate : options.quick ? std::vector<double>{10} : std::vector<double>{10, 80, 200}) {
    Plot against_time{fmt::format("validation loss over {:g} Mbit/s and {:g} ms", rate, shown_delay_ms),
                      "seconds",
                      "nats per token",
                      {},
                      true};
    for (size_t i = 0; i < shown.size(); ++i) {
      Series series{rows[shown[i]].name, {}};
      for (const auto& [at, loss] : curves[i].points()) {
        series.points.emplace_back(at * step_s_at[rows[shown[i]].name][rate], loss);
      }
      against_time.series.push_back(std::move(series));
    }
    plots.push_back(std::move(against_time));
  }
  experiment.result()["largest_measured_over_computed"] = worst_ratio;
  experiment.finish(
      fmt::format("With {:g} ms of delay the links cost less than 5 % from this rate on: {}.", shown_delay_ms, answer),
      plots);
}

}  // namespace thinpipe
