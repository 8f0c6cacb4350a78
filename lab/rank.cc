// lab rank: the same bytes per token can be many coarse coordinates or few fine ones. Which learn best, and from which
// compression on does the loss suffer?
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>

#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"

namespace thinpipe {
namespace {

struct PackBits {
  const char* name;
  int64_t bits;
};
constexpr std::array kPackBits{PackBits{"bf16", 16}, PackBits{"int8", 8}, PackBits{"int4", 4}, PackBits{"int2", 2}};

RunConfig rank_config(int64_t d, const std::vector<std::string>& more, bool quick) {
  std::vector<std::string> settings{fmt::format("model.d={}", d),
                                    "model.blocks=4",
                                    "pipeline.stages=4",
                                    "data.vocab=2048",
                                    "train.seq_len=128",
                                    "train.microbatch=4",
                                    "train.microbatches=2",
                                    "train.eval_sequences=64",
                                    fmt::format("train.steps={}", quick ? 4 : 120),
                                    fmt::format("train.eval_every={}", quick ? 4 : 120)};
  settings.insert(settings.end(), more.begin(), more.end());
  return parse_config("", "the experiment", settings);
}

}  // namespace

void lab_rank(const ExperimentOptions& options) {
  const std::vector<int64_t> widths = options.quick ? std::vector<int64_t>{64} : std::vector<int64_t>{128, 256};
  // Bytes of coordinates per token and direction; ids and scales come on top.
  const std::vector<int64_t> budgets = options.quick ? std::vector<int64_t>{4} : std::vector<int64_t>{2, 4, 8, 16};
  Experiment experiment("rank", "How few bytes per token can cross a cut before the loss suffers, and in which format?",
                        options, static_cast<int64_t>(widths.size() * (1 + budgets.size() * kPackBits.size())));
  std::vector<Plot> plots;
  std::string answer;
  for (const int64_t d : widths) {
    const auto dense = rank_config(d, {"model.mode=dense", "boundary.pack=bf16"}, options.quick);
    const auto corpus = prepare_corpus(dense.data, data_dir());
    const auto baseline = experiment.train(fmt::format("dense, d = {}", d), dense, corpus);
    fmt::print("d = {}; dense: {:.4f}\n{:<6} {:>6} {:>12} {:>9} {:>9}\n", d, baseline.final_loss(), "pack", "rank",
               "bytes/token", "vs fp32", "loss");
    Plot plot{fmt::format("loss at d = {}", d), "times fewer bytes than fp32", "nats per token", {}, true};
    std::map<double, double> best;  // loss by compression, over the packs
    for (const auto& pack : kPackBits) {
      Series series{pack.name, {}};
      for (const int64_t budget : budgets) {
        const int64_t rank = 8 * budget / pack.bits;
        if (rank > d) continue;
        const auto config = rank_config(
            d, {fmt::format("subspace.rank={}", rank), fmt::format("boundary.pack={}", pack.name)}, options.quick);
        const auto curve = experiment.train(fmt::format("d = {}, rank {} in {}", d, rank, pack.name), config, corpus);
        const double compression = 8.0 * static_cast<double>(d) / curve.bytes_per_token;
        series.points.emplace_back(compression, curve.final_loss());
        const auto [place, first] = best.emplace(compression, curve.final_loss());
        if (!first) place->second = std::min(place->second, curve.final_loss());
        fmt::print("{:<6} {:>6} {:>12.1f} {:>8.0f}x {:>9.4f}\n", pack.name, rank, curve.bytes_per_token, compression,
                   curve.final_loss());
        experiment.result()["runs"].push_back({{"d", d},
                                               {"pack", pack.name},
                                               {"rank", rank},
                                               {"bytes_per_token", curve.bytes_per_token},
                                               {"compression_vs_fp32", compression},
                                               {"loss", curve.final_loss()}});
      }
      std::sort(series.points.begin(), series.points.end());
      plot.series.push_back(std::move(series));
    }
    plot.series.push_back(
        {"dense, bf16", {{best.begin()->first, baseline.final_loss()}, {best.rbegin()->first, baseline.final_loss()}}});
    plots.push_back(std::move(plot));
    experiment.result()["dense"].push_back({{"d", d}, {"loss", baseline.final_loss()}});
    // The most compressed runs that are within 0.02 of the best of all.
    double least = best.begin()->second, most = 0;
    for (const auto& [compression, loss] : best) least = std::min(least, loss);
    for (const auto& [compression, loss] : best) {
      if (loss <= least + 0.02) most = std::max(most, compression);
    }
    answer += fmt::format("{}At d = {} the loss stays within 0.02 of the best up to {:.0f}x.",
                          answer.empty() ? "" : " ", d, most);
  }
  experiment.finish(answer, plots);
}

}  // namespace thinpipe
