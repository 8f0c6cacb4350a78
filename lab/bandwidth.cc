// lab bandwidth: tokens per second against the rate and delay of the links, dense and subspace. Short steps are
// measured: two stages on threads of this process, connected by links that are slowed down. Longer ones are computed
// from measured compute times and packet sizes (StepTime); the table marks what was measured.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

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

class Bandwidth {
 public:
  explicit Bandwidth(const ExperimentOptions& options)
      : quick_(options.quick),
        rates_(quick_ ? std::vector<double>{1, 10} : std::vector<double>{5, 10, 50, 80, 200, 1000}),
        delays_(quick_ ? std::vector<double>{0} : std::vector<double>{0, 10, 50, 100}),
        shown_delay_ms_(quick_ ? 0 : 50),
        experiment_("bandwidth", "From which bandwidth on do the links between stages stop mattering?", options,
                    static_cast<int64_t>(bandwidth_rows().size() * (1 + rates_.size() * delays_.size()) + 2)),
        corpus_(prepare_corpus(bandwidth_config(bandwidth_rows()[0], quick_).data, data_dir())),
        tokens_(static_cast<double>(tokens_per_step(bandwidth_config(bandwidth_rows()[0], quick_).train))) {}

  void run() {
    fmt::print(
        "4 blocks in 2 stages with a core each, {:.0f} tokens a step; tokens per second; * measured, else "
        "computed\n",
        tokens_);
    Plot plot{fmt::format("tokens per second with {:g} ms of delay", shown_delay_ms_),
              "Mbit/s",
              "tokens per second",
              {},
              true,
              true};
    std::string answer;
    for (const auto& row : bandwidth_rows()) {
      const auto enough = measure(row);
      Series series{row.name, {}};
      for (const auto& [rate, step_s] : step_s_[row.name]) series.points.emplace_back(rate, tokens_ / step_s);
      plot.series.push_back(std::move(series));
      answer += fmt::format("{}{} {}", answer.empty() ? "" : ", ", row.name,
                            enough ? fmt::format("{:g} Mbit/s", *enough) : "at none of these");
    }
    auto plots = losses_against_time();
    plots.insert(plots.begin(), plot);
    experiment_.result()["largest_measured_over_computed"] = worst_ratio_;
    experiment_.finish(fmt::format("With {:g} ms of delay, more bandwidth gains less than 5 % from this rate on: {}.",
                                   shown_delay_ms_, answer),
                       plots);
  }

 private:
  // Prints a table of rates and delays. Returns the rate, in Mbit/s, from which on more bandwidth gains nothing.
  std::optional<double> measure(const BandwidthRow& row) {
    const auto config = bandwidth_config(row, quick_);
    const StepTime step(config, corpus_);
    const auto key = to_toml(config) + corpus_.id;
    const double free_s = experiment_
                              .part(fmt::format("{}, unlimited", row.name), "unlimited\n" + key,
                                    [&]() -> Json { return step.over(0, 0); })
                              .get<double>();
    fmt::print("{:<16} unlimited {:>8.0f}\n", row.name, tokens_ / free_s);
    std::optional<double> enough;
    for (const double delay_ms : delays_) {
      fmt::print("{:>10.0f} ms:", delay_ms);
      for (const double rate : rates_) {
        const double step_s = point(row, step, key, rate, delay_ms);
        if (delay_ms != shown_delay_ms_) continue;
        step_s_[row.name][rate] = step_s;
        const double delay_s = delay_ms / 1000;
        if (!enough && step.over(rate * 1e6, delay_s) <= step.over(0, delay_s) / 0.95) enough = rate;
      }
      fmt::print("\n");
    }
    experiment_.result()["rows"].push_back({{"name", row.name},
                                            {"unlimited_tokens_per_s", tokens_ / free_s},
                                            {"stops_mattering_mbit", enough ? Json(*enough) : Json()}});
    return enough;
  }

  // Seconds of a step, measured if it is short.
  double point(const BandwidthRow& row, const StepTime& step, const std::string& key, double rate, double delay_ms) {
    constexpr double kLongestMeasured_s = 4;
    const auto found = experiment_.part(
        fmt::format("{}, {:g} Mbit/s, {:g} ms", row.name, rate, delay_ms),
        fmt::format("{} {}\n{}", rate, delay_ms, key), [&]() -> Json {
          const double computed_s = step.over(rate * 1e6, delay_ms / 1000);
          if (computed_s > kLongestMeasured_s) return {{"computed_s", computed_s}};
          return {{"computed_s", computed_s},
                  {"measured_s", measured_step_s(row, quick_, rate * 1e6, delay_ms / 1000, step, corpus_)}};
        });
    const double computed_s = found.at("computed_s");
    const bool measured = found.contains("measured_s");
    const double step_s = measured ? found.at("measured_s").get<double>() : computed_s;
    if (measured) worst_ratio_ = std::max(worst_ratio_, step_s / computed_s);
    fmt::print(" {:>5g} Mbit/s {:>6.0f}{}", rate, tokens_ / step_s, measured ? "*" : " ");
    experiment_.result()["points"].push_back({{"row", row.name},
                                              {"rate_mbit", rate},
                                              {"delay_ms", delay_ms},
                                              {"tokens_per_s", tokens_ / step_s},
                                              {"measured", measured},
                                              {"computed_s", computed_s}});
    return step_s;
  }

  // A training of each, shown on the clocks of several rates.
  std::vector<Plot> losses_against_time() {
    std::map<std::string, Curve> curves;
    for (const size_t i : {1, 4}) {  // dense in bf16, subspace in int4
      const auto& row = bandwidth_rows()[i];
      curves[row.name] =
          experiment_.train(fmt::format("{}, training", row.name), bandwidth_config(row, quick_), corpus_);
    }
    std::vector<Plot> plots;
    for (const double rate : quick_ ? std::vector<double>{10} : std::vector<double>{10, 80, 200}) {
      plots.push_back({fmt::format("validation loss over {:g} Mbit/s and {:g} ms", rate, shown_delay_ms_),
                       "seconds",
                       "nats per token",
                       {},
                       true});
      for (const auto& [name, curve] : curves) {
        Series series{name, {}};
        for (const auto& [at, loss] : curve.points()) series.points.emplace_back(at * step_s_[name][rate], loss);
        plots.back().series.push_back(std::move(series));
      }
    }
    return plots;
  }

  const bool quick_;
  const std::vector<double> rates_, delays_;  // Mbit/s, ms
  const double shown_delay_ms_;
  Experiment experiment_;
  const PreparedCorpus corpus_;
  const double tokens_;                                     // of a step
  std::map<std::string, std::map<double, double>> step_s_;  // by row and rate, at the delay that is shown
  double worst_ratio_ = 1;                                  // of measured to computed times
};

}  // namespace

void lab_bandwidth(const ExperimentOptions& options) { Bandwidth(options).run(); }

}  // namespace thinpipe
