// lab collapse: does training confine a dense transformer to few directions, as the method assumes? Follows the stable
// rank of the residual stream, of its gradient and of the output projections, by block and step, for two optimisers
// with and without weight decay. lab/collapse_elsewhere.py asks the same of other kinds of models.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/files.h"
#include "base/result.h"
#include "base/rng.h"
#include "config/config_file.h"
#include "lab/experiment.h"
#include "lab/experiments.h"
#include "lab/spectrum.h"
#include "model/fill.h"
#include "pipeline/in_process.h"
#include "pipeline/stage_worker.h"

namespace thinpipe {
namespace {

using Json = nlohmann::ordered_json;

struct CollapseRow {
  const char* optimizer;
  double lr, weight_decay;

  std::string name() const { return fmt::format("{}, decay {:g}", optimizer, weight_decay); }
};
constexpr std::array kCollapseRows{CollapseRow{"adamw", 0.003, 0}, CollapseRow{"adamw", 0.003, 0.1},
                                   CollapseRow{"muon", 0.02, 0}, CollapseRow{"muon", 0.02, 0.1}};

// One block per stage: the streams between the stages are what is looked at.
RunConfig collapse_config(const CollapseRow& row, bool quick) {
  const int64_t blocks = quick ? 2 : 8;
  return parse_config(
      "", "the experiment",
      std::vector<std::string>{
          "model.mode=dense", fmt::format("model.d={}", quick ? 64 : 128), "model.heads=4",
          fmt::format("model.blocks={}", blocks), fmt::format("pipeline.stages={}", blocks), "data.vocab=2048",
          "train.seq_len=128", "train.microbatch=4", "train.microbatches=2", "train.eval_sequences=64",
          fmt::format("optim.kind={}", row.optimizer), fmt::format("optim.lr={}", row.lr),
          fmt::format("optim.weight_decay={}", row.weight_decay), fmt::format("train.steps={}", quick ? 6 : 600),
          fmt::format("train.eval_every={}", quick ? 3 : 100)});
}

Json json_of(const Spectrum& spectrum) { return {{"stable_rank", spectrum.stable_rank}, {"top_k", spectrum.top_k}}; }

// Per block, on the tokens of step 0: the stream behind the block, its gradient, and both output projections. `seen`
// gets the tensors.
Json look(InProcessPipeline& pipeline, CorpusBatches& batches, int64_t blocks, int64_t k, NamedTensors& seen) {
  seen.clear();
  const auto batch = batches.training(0, 0).take();
  std::vector<StagePass> passes;
  std::vector<at::Tensor> streams, gradients(static_cast<size_t>(blocks));
  const auto stage = [&](int64_t i) -> Stage& { return pipeline.worker(static_cast<size_t>(i)).stage(); };
  at::Tensor stream;
  for (int64_t i = 0; i < blocks; ++i) {
    passes.push_back(stage(i).forward(batch, stream, 1.0 / static_cast<double>(batch.sequences() * batch.length())));
    stream = passes.back().output;
    streams.push_back(stream);
  }
  at::Tensor grad;
  for (int64_t i = blocks - 1; i >= 0; --i) {
    gradients[static_cast<size_t>(i)] = grad.defined() ? grad.clone() : grad;
    grad = stage(i).backward(std::move(passes[static_cast<size_t>(i)]), std::move(grad));
  }
  Json all = Json::array();
  for (int64_t i = 0; i < blocks; ++i) {
    auto& parameters = stage(i).parameters();
    Json block;
    const auto note = [&](const char* name, const at::Tensor& tensor) {
      block[name] = json_of(spectrum_of(tensor, k));
      seen.emplace_back(fmt::format("{}.{}", i, name), tensor.to(at::kDouble).contiguous());
    };
    for (const char* name : {"wp1", "wp2"}) note(name, parameters.at(fmt::format("blocks.{}.{}", i, name)).value);
    // The last block's stream stays inside its stage.
    if (i + 1 < blocks) {
      const auto& x = streams[static_cast<size_t>(i)];
      note("activations", x);
      block["activations_centred"] = json_of(spectrum_of(x, k, /*centred=*/true));
      note("gradients", gradients[static_cast<size_t>(i)]);
    }
    all.push_back(std::move(block));
  }
  return all;
}

Json train_and_look(const RunConfig& config, const PreparedCorpus& corpus, int64_t k, NamedTensors& last_seen) {
  CorpusBatches batches(corpus, config.train);
  InProcessPipeline pipeline(config, corpus.vocab, batches);
  const int64_t windows = std::min(config.train.eval_sequences, batches.validation_windows());
  Json points = Json::array();
  const auto note = [&](int64_t step) {
    points.push_back({{"step", step}, {"blocks", look(pipeline, batches, config.model.blocks, k, last_seen)}});
  };
  note(0);
  for (int64_t step = 0; step < config.train.steps; ++step) {
    pipeline.step(step);
    if ((step + 1) % config.train.eval_every == 0) note(step + 1);
  }
  return {{"loss", pipeline.validate(windows)}, {"points", points}};
}

// Over the blocks that have it, at one point.
double mean_rank(const Json& point, const char* what) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& block : point.at("blocks")) {
    if (!block.contains(what)) continue;
    sum += block.at(what).at("stable_rank").get<double>();
    ++count;
  }
  return sum / static_cast<double>(count);
}

// The runs of lab/collapse_elsewhere.py as plots: for each kind of model the mean over its blocks, by step.
std::vector<Plot> plots_elsewhere(const std::string& path) {
  const std::array<std::pair<const char*, const char*>, 3> parts{
      {{"weight_stable_rank", "output projections"},
       {"activation_centred_stable_rank", "activations, centred"},
       {"gradient_stable_rank", "gradients"}}};
  std::vector<Plot> plots;
  try {
    const auto file = Json::parse(read_file(path).take());
    for (const auto& run : file.at("runs")) {
      const auto model = run.at("model").get<std::string>();
      if (plots.empty() || !plots.back().title.starts_with(model)) {
        for (const auto& part : parts) {
          plots.push_back({fmt::format("{}: {}", model, part.second), "steps", "mean stable rank", {}});
        }
      }
      for (size_t i = 0; i < parts.size(); ++i) {
        Series series{
            fmt::format("{}, decay {:g}", run.at("optimizer").get<std::string>(), run.at("weight_decay").get<double>()),
            {}};
        for (const auto& point : run.at("points")) {
          double sum = 0;
          for (const auto& block : point.at("blocks")) sum += block.at(parts[i].first).get<double>();
          series.points.emplace_back(point.at("step"), sum / static_cast<double>(point.at("blocks").size()));
        }
        plots[plots.size() - parts.size() + i].series.push_back(std::move(series));
      }
    }
  } catch (const Json::exception& error) {
    throw UserError(
        fmt::format("--elsewhere {}: needs a file that lab/collapse_elsewhere.py wrote ({})", path, error.what()));
  }
  return plots;
}

}  // namespace

void lab_collapse(const ExperimentOptions& options) {
  const auto elsewhere = options.elsewhere.empty() ? std::vector<Plot>{} : plots_elsewhere(options.elsewhere);
  Experiment experiment("collapse", "Does training confine a dense transformer to few directions, and where?", options,
                        static_cast<int64_t>(kCollapseRows.size()));
  const auto first = collapse_config(kCollapseRows[0], options.quick);
  const auto corpus = prepare_corpus(first.data, data_dir());
  const int64_t d = first.model.d, k = std::max<int64_t>(4, d / 16);
  const auto random = [&](int64_t rows) {
    return spectrum_of(fill_random(CounterRng(1, "collapse"), {rows, d}, 1.0, at::kDouble), k).stable_rank;
  };
  const double random_stream = random(first.train.microbatch * first.train.seq_len), random_wp1 = random(d),
               random_wp2 = random(first.model.mlp_width);
  fmt::print("d = {}, {} blocks; mean stable rank over the blocks, at the start and after {} steps\n", d,
             first.model.blocks, first.train.steps);
  const std::array<const char*, 5> parts{"activations", "activations_centred", "gradients", "wp1", "wp2"};
  fmt::print("{:<18} {:>8}", "", "loss");
  for (const auto* part : parts) fmt::print(" {:>20}", part);
  fmt::print("\n{:<18} {:>8} {:>20.1f} {:>20.1f} {:>20.1f} {:>20.1f} {:>20.1f}\n", "random numbers", "", random_stream,
             random_stream, random_stream, random_wp1, random_wp2);
  std::vector<Plot> plots;
  for (const auto* part : parts) plots.push_back({fmt::format("stable rank: {}", part), "steps", "stable rank", {}});
  double least_weights = 1;  // of the weights' stable rank at the end over that at the start
  double stream_at_end = 0, gradients_at_end = 0;
  for (const auto& row : kCollapseRows) {
    const auto config = collapse_config(row, options.quick);
    NamedTensors seen;
    const auto found = experiment.part(row.name(), to_toml(config) + corpus.id,
                                       [&] { return train_and_look(config, corpus, k, seen); });
    experiment.dump(seen);  // of the last row
    const auto& points = found.at("points");
    fmt::print("{:<18} {:>8.4f}", row.name(), found.at("loss").get<double>());
    for (size_t i = 0; i < parts.size(); ++i) {
      Series series{row.name(), {}};
      for (const auto& point : points) series.points.emplace_back(point.at("step"), mean_rank(point, parts[i]));
      fmt::print(" {:>11.1f} -> {:>5.1f}", series.points.front().second, series.points.back().second);
      plots[i].series.push_back(std::move(series));
    }
    fmt::print("\n");
    for (const auto* part : {"wp1", "wp2"}) {
      least_weights = std::min(least_weights, mean_rank(points.back(), part) / mean_rank(points.front(), part));
    }
    stream_at_end += mean_rank(points.back(), "activations_centred") / static_cast<double>(kCollapseRows.size());
    gradients_at_end += mean_rank(points.back(), "gradients") / static_cast<double>(kCollapseRows.size());
    auto& kept = experiment.result()["runs"];
    kept.push_back({{"optimizer", row.optimizer}, {"weight_decay", row.weight_decay}});
    kept.back().update(found);
  }
  plots.insert(plots.end(), elsewhere.begin(), elsewhere.end());
  experiment.result()["random"] = {{"stream", random_stream}, {"wp1", random_wp1}, {"wp2", random_wp2}};
  experiment.finish(
      fmt::format("The stream ends with a stable rank of {:.1f} (centred) and its gradient with {:.1f}, where random "
                  "numbers have {:.1f}; the output projections keep {:.0f} % of theirs or more.",
                  stream_at_end, gradients_at_end, random_stream, 100 * least_weights),
      plots);
}

}  // namespace thinpipe
