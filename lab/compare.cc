// thinpipe compare: the method's first picture on this machine. Loss against wall time of a dense model over links that
// take no time, of the same over slow links, and of the subspace model over the same slow links.
#include <algorithm>
#include <tuple>

#include "base/result.h"
#include "base/units.h"
#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

// arXiv 2506.01260: tokens per second of a model in the subspace and of a dense one over 80 Mbit/s.
constexpr double kPaperSubspace = 592, kPaperDense = 36;

RunConfig compare_config(const char* mode, const std::string& rate, bool quick) {
  std::vector<std::string> settings{fmt::format("model.mode={}", mode), "link.rate=" + rate,
                                    fmt::format("train.steps={}", quick ? 4 : 100),
                                    fmt::format("train.eval_every={}", quick ? 2 : 10), "train.eval_sequences=64"};
  if (quick) {
    settings.insert(settings.end(), {"model.d=64", "model.blocks=4", "model.heads=2", "data.vocab=1024",
                                     "train.seq_len=64", "train.microbatch=2", "train.microbatches=4"});
  }
  return parse_config("", "the comparison", settings);
}

// Seconds of a step with real waiting, stages on threads of this process: the mean of `steps` after one that warms up.
double timed_step_s(const RunConfig& config, const PreparedCorpus& corpus, int64_t steps) {
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, corpus_table(config, corpus).take(), /*shaped=*/true);
  pipeline.step(0);
  const SystemClock clock;
  const auto start = clock.now();
  for (int64_t i = 1; i <= steps; ++i) pipeline.step(i);
  return seconds(clock.now() - start) / static_cast<double>(steps);
}

struct CompareLine {
  std::string name;
  const Curve& curve;
  double step_s;
};

// Prints the lines and returns their losses against time.
Plot show_lines(Experiment& experiment, const std::string& title, const std::vector<CompareLine>& lines,
                const TrainConfig& train) {
  const auto tokens = static_cast<double>(tokens_per_step(train));
  Plot plot{title, "seconds", "nats per token", {}, true};
  for (const auto& line : lines) {
    fmt::print("{:<24} {:>10.0f} {:>12.2f} {:>10.4f} {:>12.0f}\n", line.name, tokens / line.step_s, line.step_s,
               line.curve.final_loss(), line.step_s * static_cast<double>(train.steps));
    Series series{line.name, {}};
    for (const auto& [step, loss] : line.curve.points()) series.points.emplace_back(step * line.step_s, loss);
    plot.series.push_back(std::move(series));
    experiment.result()["lines"].push_back({{"name", line.name},
                                            {"tokens_per_s", tokens / line.step_s},
                                            {"step_s", line.step_s},
                                            {"loss", line.curve.final_loss()}});
  }
  return plot;
}

// A core of this machine is far slower than the paper's GPUs, so the same links hurt less. Over this rate they slow the
// dense model down as much as theirs did: its messages take 16 times as long as its step without a limit.
std::string hurting_rate(const RunConfig& config, double free_step_s) {
  const double message_bits = 2 * 8.0 * 4 * static_cast<double>(config.model.d * tokens_per_step(config.train));
  return fmt::format("{:.0f}kbit", std::max(1.0, message_bits / (kPaperSubspace / kPaperDense * free_step_s) / 1000));
}

}  // namespace

void compare(const CompareOptions& options) {
  const bool quick = options.common.quick;
  if (const auto rate = parse_rate(options.rate); !rate) {
    throw UserError(fmt::format("--rate {}: {}", options.rate, rate.error().message));
  }
  Experiment experiment("compare",
                        fmt::format("What does training over {} cost, dense and in the subspace?", options.rate),
                        options.common, 7);
  const auto free = compare_config("dense", "unlimited", quick);
  const auto corpus = prepare_corpus(free.data, data_dir());
  const auto timed = [&](const char* mode, const std::string& rate, int64_t steps) {
    const auto config = compare_config(mode, rate, quick);
    return experiment
        .part(fmt::format("{} over {}", mode, rate), fmt::format("time of {}\n{}{}", steps, to_toml(config), corpus.id),
              [&]() -> Json { return timed_step_s(config, corpus, steps); })
        .get<double>();
  };
  const double dense_free_s = timed("dense", "unlimited", 3);
  const double dense_s = timed("dense", options.rate, 3), subspace_s = timed("subspace", options.rate, 3);
  const auto slow = hurting_rate(free, dense_free_s);
  const double dense_slow_s = timed("dense", slow, 1), subspace_slow_s = timed("subspace", slow, 3);
  const auto dense = experiment.train("dense, training", compare_config("dense", options.rate, quick), corpus);
  const auto subspace = experiment.train("subspace, training", compare_config("subspace", options.rate, quick), corpus);

  fmt::print(
      "{} stages in one process, {} steps. Steps over slow links were timed; the losses are those of a run over\n"
      "links that take no time, shown on that clock.\n\n",
      free.pipeline.stages, free.train.steps);
  fmt::print("{:<24} {:>10} {:>12} {:>10} {:>12}\n", "", "tokens/s", "seconds/step", "loss", "seconds");
  std::vector<Plot> plots;
  for (const auto& [rate, dense_over_s, subspace_over_s] :
       {std::tuple(options.rate, dense_s, subspace_s), std::tuple(slow, dense_slow_s, subspace_slow_s)}) {
    plots.push_back(show_lines(experiment, "validation loss over " + rate,
                               {{"dense, no limit", dense, dense_free_s},
                                {"dense, " + rate, dense, dense_over_s},
                                {"subspace, " + rate, subspace, subspace_over_s}},
                               free.train));
  }
  auto& result = experiment.result();
  result["subspace_over_dense"] = dense_s / subspace_s;
  result["slow_rate"] = slow;
  result["subspace_over_dense_slow"] = dense_slow_s / subspace_slow_s;
  result["paper"] = {{"subspace", kPaperSubspace}, {"dense", kPaperDense}};
  experiment.finish(
      fmt::format("Over {} the subspace model trains {:.1f} times as many tokens per second as the dense one; over {}, "
                  "where links slow the dense one down as much as in the paper, {:.1f} times. The paper reports {:.0f} "
                  "against {:.0f} tokens/s, {:.1f} times.",
                  options.rate, dense_s / subspace_s, slow, dense_slow_s / subspace_slow_s, kPaperSubspace, kPaperDense,
                  kPaperSubspace / kPaperDense),
      plots);
}

}  // namespace thinpipe
