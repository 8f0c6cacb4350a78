// lab grassmann: does moving the subspace towards the gradients pay? Trains one model with several intervals and rates
// between moves, and never, and follows the energy of the gradients inside S, the angles, and U^T U.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "pipeline/corpus_table.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

struct MovingRow {
  int64_t every;  // 0: never
  double rate;
  int64_t seed;  // also of the first S

  std::string name() const {
    return every == 0 ? fmt::format("never, seed {}", seed)
                      : fmt::format("every {}, rate {:g}, seed {}", every, rate, seed);
  }
};

std::vector<MovingRow> moving_rows(bool quick) {
  if (quick) return {{0, 0.1, 1}, {5, 1, 1}};
  std::vector<MovingRow> rows;
  for (const int64_t seed : {1, 2}) {
    rows.push_back({0, 0.1, seed});
    for (const int64_t every : {50, 200, 500}) {
      for (const double rate : {0.01, 0.1, 1.0}) {
        if (seed == 1 || rate == 0.1) rows.push_back({every, rate, seed});
      }
    }
  }
  return rows;
}

RunConfig moving_config(const MovingRow& row, bool quick) {
  return parse_config(
      "", "the experiment",
      std::vector<std::string>{
          "model.d=64", "model.blocks=4", "model.heads=2", "pipeline.stages=4", "data.vocab=1024", "train.seq_len=64",
          "train.microbatch=4", "train.microbatches=2", "train.eval_sequences=64", "subspace.rank=8",
          "boundary.pack=fp32", fmt::format("train.steps={}", quick ? 20 : 1000),
          fmt::format("train.eval_every={}", quick ? 10 : 50), fmt::format("subspace.update_every={}", row.every),
          fmt::format("subspace.update_rate={}", row.rate), fmt::format("train.seed={}", row.seed)});
}

// The largest share of tr C that a subspace of that rank could hold.
double attainable(const at::Tensor& c, int64_t rank) {
  const auto values = at::linalg_eigvalsh(c.to(at::kDouble));
  const double total = values.sum().item<double>();
  return total > 0 ? values.slice(0, values.numel() - rank).sum().item<double>() / total : 0;
}

// 0: the later S contains the earlier one; 1: they are at right angles.
double mean_squared_sine(const at::Tensor& earlier, const at::Tensor& later) {
  return 1 - earlier.t().mm(later).square().sum().item<double>() / static_cast<double>(earlier.size(1));
}

// The losses, and for every move: step, energy inside S before it and at best, largest angle, eigenvalues of U^T U, and
// how far S came in the last two moves together compared with both alone (below 1: the second took the first back).
Json train_moving(const RunConfig& config, const PreparedCorpus& corpus) {
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches, corpus_table(config, corpus).take());
  auto& side = *pipeline.worker(static_cast<size_t>(config.pipeline.stages - 1)).stage().subspace();
  const int64_t windows = std::min(config.train.eval_sequences, batches.validation_windows());
  Json losses = Json::array(), moves = Json::array();
  std::vector<at::Tensor> bases{side.basis().u};
  for (int64_t step = 0; step < config.train.steps; ++step) {
    const auto c = side.second_moment();
    const auto result = pipeline.step(step);
    if (result.stages.back().has_basis()) {
      const auto& basis = result.stages.back().basis();
      bases.push_back(side.basis().u);
      const size_t n = bases.size();
      const double last = mean_squared_sine(bases[n - 2], bases[n - 1]);
      double straight = 1;
      if (n > 2) {
        const double alone = std::sqrt(mean_squared_sine(bases[n - 3], bases[n - 2])) + std::sqrt(last);
        if (alone > 0) straight = std::sqrt(std::max(0.0, mean_squared_sine(bases[n - 3], bases[n - 1]))) / alone;
      }
      moves.push_back({{"step", step + 1},
                       {"energy_inside", basis.energy_inside()},
                       {"energy_attainable", c.defined() ? attainable(c, config.model.subspace.rank) : 0},
                       {"largest_angle_rad", *std::max_element(basis.angles_rad().begin(), basis.angles_rad().end())},
                       {"gram", {basis.smallest_gram(), basis.largest_gram()}},
                       {"straightness", straight}});
    }
    if ((step + 1) % config.train.eval_every == 0) losses.push_back(pipeline.validate(windows));
  }
  return {{"losses", losses}, {"moves", moves}};
}

}  // namespace

void lab_grassmann(const ExperimentOptions& options) {
  const auto rows = moving_rows(options.quick);
  Experiment experiment("grassmann", "Does it pay to move the subspace towards the gradients?", options,
                        static_cast<int64_t>(rows.size()));
  const auto corpus = prepare_corpus(moving_config(rows[0], options.quick).data, data_dir());
  fmt::print("{:<28} {:>8} {:>24} {:>10} {:>9} {:>12} {:>12}\n", "moves", "loss", "energy inside: first, last",
             "attainable", "angle", "|U^T U - I|", "straightness");
  Plot losses{"validation loss", "steps", "nats per token", {}},
      energies{"energy of the gradients inside S", "steps", "share of tr C", {}};
  double fixed = 0, best = INFINITY, worst_gram = 0;
  std::string best_name;
  for (const auto& row : rows) {
    const auto config = moving_config(row, options.quick);
    const auto found =
        experiment.part(row.name(), to_toml(config) + corpus.id, [&] { return train_moving(config, corpus); });
    const auto curve = found.at("losses").get<std::vector<double>>();
    const auto& moves = found.at("moves");
    Series loss_line{row.name(), {}}, energy_line{row.name(), {}};
    for (size_t i = curve.size() / 4; i < curve.size(); ++i) {
      loss_line.points.emplace_back(static_cast<double>(i + 1) * static_cast<double>(config.train.eval_every),
                                    curve[i]);
    }
    double gram = 0, straight = 0;
    for (const auto& move : moves) {
      energy_line.points.emplace_back(move.at("step"), move.at("energy_inside"));
      for (const auto& value : move.at("gram")) gram = std::max(gram, std::abs(value.get<double>() - 1));
      straight += move.at("straightness").get<double>() / static_cast<double>(moves.size());
    }
    worst_gram = std::max(worst_gram, gram);
    losses.series.push_back(std::move(loss_line));
    if (moves.empty()) {
      fmt::print("{:<28} {:>8.4f}\n", row.name(), curve.back());
    } else {
      energies.series.push_back(std::move(energy_line));
      fmt::print("{:<28} {:>8.4f} {:>16.3f} {:>7.3f} {:>10.3f} {:>9.4f} {:>12.1e} {:>12.2f}\n", row.name(),
                 curve.back(), moves.front().at("energy_inside").get<double>(),
                 moves.back().at("energy_inside").get<double>(), moves.back().at("energy_attainable").get<double>(),
                 moves.back().at("largest_angle_rad").get<double>(), gram, straight);
    }
    auto& kept = experiment.result()["rows"];
    kept.push_back(found);
    kept.back()["name"] = row.name();
    if (row.seed != 1) continue;
    if (row.every == 0) {
      fixed = curve.back();
    } else if (curve.back() < best) {
      best = curve.back(), best_name = row.name();
    }
  }
  experiment.result()["fixed_loss"] = fixed;
  experiment.result()["best_moving_loss"] = best;
  experiment.result()["largest_gram_error"] = worst_gram;
  experiment.finish(fmt::format("Moving the subspace {}: the best of these ends at {:.4f} ({}), a fixed one at {:.4f}.",
                                best < fixed - 0.01 ? "pays" : "does not pay", best, best_name, fixed),
                    {losses, energies});
}

}  // namespace thinpipe
